/** Says each change of the current kernel's standing to screen readers, once and politely. */
import type { TranslationBundle } from "@jupyterlab/translation";
import type { Output } from "./kernel.js";
import type { Watcher } from "./watcher.js";
import { announcement } from "./words.js";

/** A change within this many milliseconds replaces the one before. */
const SETTLES_MS = 400;

export class Announcer {
  constructor(private readonly _trans: TranslationBundle) {
    this._region.className = "gh-Announcer";
    this._region.setAttribute("role", "status");
    this._region.setAttribute("aria-live", "polite");
    document.body.append(this._region);
  }

  /** Whose changes are said. */
  set watcher(watcher: Watcher | null) {
    if (watcher === this._watcher) {
      return;
    }
    // What was said, or is about to be, is of another kernel.
    window.clearTimeout(this._timer);
    this._region.textContent = "";
    this._watcher?.told.disconnect(this._told, this);
    this._watcher = watcher;
    watcher?.told.connect(this._told, this);
  }

  private _told(watcher: Watcher, output: Output): void {
    if (output.kind !== "changed" || !watcher.ours) {
      return;
    }
    window.clearTimeout(this._timer);
    const text = announcement(output.standing, watcher.state.need, this._trans);
    this._timer = window.setTimeout(() => {
      this._region.textContent = text;
    }, SETTLES_MS);
  }

  private readonly _region = document.createElement("div");
  private _watcher: Watcher | null = null;
  private _timer = 0;
}
