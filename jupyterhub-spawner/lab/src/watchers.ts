/**
 * One watcher for each kernel connection of an open notebook or console, shared by all that draws. Two views of a notebook
 * have one connection, and a connection has one announcement.
 */
import type { ISessionContext } from "@jupyterlab/apputils";
import { type ISignal, Signal } from "@lumino/signaling";
import type { Widget } from "@lumino/widgets";
import { Shared } from "./shared.js";
import { Watcher } from "./watcher.js";

/** A widget with a kernel: a notebook's or a console's panel. */
export type KernelPanel = Widget & { readonly sessionContext: ISessionContext };

export class Watchers {
  /** Emitted when a panel is watched for the first time. */
  get added(): ISignal<this, KernelPanel> {
    return this._added;
  }

  /** The panel's watcher, made with the first call for one of its session's panels. */
  of(panel: KernelPanel): Watcher {
    const { sessionContext } = panel;
    const watcher = this._watchers.of(sessionContext, panel, () => new Watcher(sessionContext));
    if (!this._known.has(panel)) {
      this._known.add(panel);
      this._added.emit(panel);
    }
    return watcher;
  }

  private readonly _watchers = new Shared<ISessionContext, KernelPanel, Watcher>();
  private readonly _known = new WeakSet<KernelPanel>();
  private readonly _added = new Signal<this, KernelPanel>(this);
}

/** Whether a widget is a panel with a kernel. */
export function isKernelPanel(widget: Widget | null): widget is KernelPanel {
  return widget !== null && "sessionContext" in widget;
}
