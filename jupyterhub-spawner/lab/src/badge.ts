/** The badge: what the kernel of the current notebook holds or waits for. In the notebook's toolbar and the status bar. */
import type { TranslationBundle } from "@jupyterlab/translation";
import { Widget } from "@lumino/widgets";
import { remaining } from "./kernel.js";
import { Ticker } from "./ticker.js";
import type { Watcher } from "./watcher.js";
import { badge, waitLine } from "./words.js";

export namespace Badge {
  export interface IOptions {
    readonly trans: TranslationBundle;
    /** Called when the badge is activated. */
    readonly open: (watcher: Watcher) => void;
    readonly watcher?: Watcher;
  }
}

export class Badge extends Widget {
  constructor(options: Badge.IOptions) {
    const button = document.createElement("button");
    super({ node: button });
    this._trans = options.trans;
    this._text = document.createElement("span");
    this.addClass("gh-Badge");
    button.type = "button";
    const dot = document.createElement("span");
    dot.className = "gh-Badge-dot";
    dot.setAttribute("aria-hidden", "true");
    this._text.className = "gh-Badge-text";
    button.append(dot, this._text);
    button.addEventListener("click", () => this._watcher && options.open(this._watcher));
    this.watcher = options.watcher ?? null;
  }

  /** Whose state is shown; `null` hides the badge. */
  set watcher(watcher: Watcher | null) {
    this._watcher?.changed.disconnect(this._draw, this);
    this._watcher = watcher;
    watcher?.changed.connect(this._draw, this);
    this._draw();
  }

  dispose(): void {
    this.watcher = null;
    this._ticker.dispose();
    super.dispose();
  }

  private _draw(): void {
    const watcher = this._watcher;
    const shown = watcher?.ours === true;
    this.setHidden(!shown);
    this._ticker.running = shown && remaining(watcher.state, Date.now()) !== undefined;
    if (!shown) {
      return;
    }
    const { state } = watcher;
    const text = badge(state, Date.now(), this._trans);
    if (this._text.textContent !== text) {
      this._text.textContent = text;
    }
    this.node.dataset.state = state.standing.state === "cpu" && state.away ? "away" : state.standing.state;
    this.node.title = state.away ?? waitLine(state, Date.now(), this._trans);
    this.node.setAttribute("aria-label", this._trans.__("GPU: %1. Show details", text));
  }

  private readonly _trans: TranslationBundle;
  private readonly _text: HTMLSpanElement;
  private readonly _ticker = new Ticker(() => this._draw());
  private _watcher: Watcher | null = null;
}
