/** Tells that a long cell is done, where its user may be elsewhere. */
import type { TranslationBundle } from "@jupyterlab/translation";
import { Signal } from "@lumino/signaling";
import type { Widget } from "@lumino/widgets";
import type { Output } from "./kernel.js";
import type { Settings } from "./settings.js";
import { tell } from "./toast.js";
import type { Watcher } from "./watcher.js";
import { ranLine } from "./words.js";

export class DoneNotice {
  constructor(
    /** The open views of the notebook. */
    private readonly _views: readonly Widget[],
    watcher: Watcher,
    private readonly _trans: TranslationBundle,
    private readonly _settings: Settings,
  ) {
    watcher.told.connect(this._told, this);
  }

  dispose(): void {
    Signal.clearData(this);
  }

  private _told(_: unknown, output: Output): void {
    const afterS = this._settings.now.doneAfter;
    if (output.kind !== "ran" || afterS <= 0) {
      return;
    }
    const { ran } = output;
    const tookMs = ran.waitedMs + (ran.ranMs ?? 0);
    if (tookMs < afterS * 1000 || (this._views.some((view) => view.isVisible) && !document.hidden)) {
      return;
    }
    const what = this._trans.__("A cell of %1 is done.", this._views[0]?.title.label ?? "");
    tell("info", `${what} ${ranLine(ran, this._trans)}`, this._trans, { autoClose: false });
  }
}
