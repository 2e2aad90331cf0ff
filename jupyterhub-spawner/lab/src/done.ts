/** Tells that a long cell is done, where its user may be elsewhere. */
import { Notification } from "@jupyterlab/apputils";
import type { NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { Output } from "./kernel.js";
import type { Watcher } from "./watcher.js";
import { ranLine } from "./words.js";

export class DoneNotice {
  constructor(
    private readonly _panel: NotebookPanel,
    watcher: Watcher,
    private readonly _trans: TranslationBundle,
  ) {
    watcher.told.connect(this._told, this);
  }

  /** Cells that took at least this many seconds, waiting included, are told; 0 tells none. */
  afterS = 0;

  private _told(_: unknown, output: Output): void {
    if (output.kind !== "ran" || this.afterS <= 0) {
      return;
    }
    const { ran } = output;
    if (ran.waitedMs + (ran.ranMs ?? 0) < this.afterS * 1000 || (this._panel.isVisible && !document.hidden)) {
      return;
    }
    const what = this._trans.__("A cell of %1 is done.", this._panel.title.label);
    Notification.info(`${what} ${ranLine(ran, this._trans)}`, { autoClose: false });
  }
}
