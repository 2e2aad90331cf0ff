/** One watcher for each open notebook and console, shared by all that draws. */
import type { ISessionContext } from "@jupyterlab/apputils";
import { type ISignal, Signal } from "@lumino/signaling";
import type { Widget } from "@lumino/widgets";
import { Watcher } from "./watcher.js";

/** A widget with a kernel: a notebook's or a console's panel. */
export type KernelPanel = Widget & { readonly sessionContext: ISessionContext };

export class Watchers {
  /** Emitted when a panel is watched for the first time. */
  get added(): ISignal<this, KernelPanel> {
    return this._added;
  }

  /** The panel's watcher, made with the first call. */
  of(panel: KernelPanel): Watcher {
    const known = this._watchers.get(panel);
    if (known) {
      return known;
    }
    const watcher = new Watcher(panel.sessionContext);
    this._watchers.set(panel, watcher);
    panel.disposed.connect(() => {
      this._watchers.delete(panel);
      watcher.dispose();
    });
    this._added.emit(panel);
    return watcher;
  }

  /** The watchers of all open panels. */
  all(): [KernelPanel, Watcher][] {
    return [...this._watchers];
  }

  private readonly _watchers = new Map<KernelPanel, Watcher>();
  private readonly _added = new Signal<this, KernelPanel>(this);
}

/** Whether a widget is a panel with a kernel. */
export function isKernelPanel(widget: Widget | null): widget is KernelPanel {
  return widget !== null && "sessionContext" in widget;
}
