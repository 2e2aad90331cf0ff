/**
 * The line below a waiting cell's input, and what a cell ran on in its prompt's tooltip. Both are DOM alone: nothing is
 * written into the notebook.
 */
import type { Cell } from "@jupyterlab/cells";
import type { NotebookPanel } from "@jupyterlab/notebook";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { IDisposable } from "@lumino/disposable";
import { Signal } from "@lumino/signaling";
import { type PanelLayout, Widget } from "@lumino/widgets";
import { attempt } from "./failure.js";
import { cellOf, type Output, waits } from "./kernel.js";
import { Ticker } from "./ticker.js";
import type { Watcher } from "./watcher.js";
import { ranLine, waited, waitLine } from "./words.js";

export class CellLines implements IDisposable {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _watcher: Watcher,
    private readonly _trans: TranslationBundle,
  ) {
    _watcher.changed.connect(this._draw, this);
    _watcher.told.connect(this._told, this);
    void _panel.context.ready.then(() => {
      if (!this.isDisposed) {
        _panel.content.model?.cells.changed.connect(this._draw, this);
        this._draw();
      }
    });
    _panel.disposed.connect(() => this.dispose());
  }

  /** Whether lines are drawn; off takes the present one away. */
  set enabled(enabled: boolean) {
    this._enabled = enabled;
    this._draw();
  }

  get isDisposed(): boolean {
    return this._ticker.isDisposed;
  }

  dispose(): void {
    // Watcher and model may have another view.
    Signal.clearData(this);
    this._ticker.dispose();
    this._line?.dispose();
  }

  private _draw(): void {
    if (this.isDisposed || this._panel.isDisposed) {
      return;
    }
    const { state } = this._watcher;
    const cellId = this._enabled && waits(state) ? cellOf(state) : undefined;
    const cell = cellId === undefined ? undefined : this._find(cellId);
    this._ticker.running = cell !== undefined;
    if (!cell) {
      this._line?.dispose();
      this._line = null;
      return;
    }
    if (!this._line || this._line.cell !== cell) {
      this._line?.dispose();
      const stop = () => void attempt(() => this._watcher.kernel?.interrupt(), this._trans);
      this._line = new Line(cell, this._trans, stop);
    }
    const now = Date.now();
    this._line.tell(state.standing.state, waitLine(state, now, this._trans), waited(state, now, this._trans));
  }

  private _told(_: unknown, output: Output): void {
    if (output.kind === "changed") {
      return;
    }
    const prompt = this._find(output.cellId)?.inputArea?.promptNode;
    if (output.kind === "ran") {
      prompt?.setAttribute("title", ranLine(output.ran, this._trans));
    } else {
      prompt?.removeAttribute("title");
    }
  }

  private _find(cellId: string): Cell | undefined {
    return this._panel.content.widgets.find((cell) => cell.model.id === cellId);
  }

  private readonly _ticker = new Ticker(() => this._draw());
  private _line: Line | null = null;
  private _enabled = true;
}

/** The line itself, between the input of its cell and the outputs. */
class Line extends Widget {
  constructor(
    readonly cell: Cell,
    trans: TranslationBundle,
    stop: () => void,
  ) {
    super();
    this.addClass("gh-WaitLine");
    const dot = document.createElement("span");
    dot.className = "gh-WaitLine-dot";
    dot.setAttribute("aria-hidden", "true");
    this._text.className = "gh-WaitLine-text";
    this._time.className = "gh-WaitLine-time";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "gh-WaitLine-stop";
    button.textContent = trans.__("Stop waiting");
    button.addEventListener("click", stop);
    this.node.append(dot, this._text, this._time, button);
    // A cell that was never in view has no layout yet.
    void cell.ready.then(() => this._insert());
  }

  tell(state: string, text: string, time: string): void {
    this.node.dataset.state = state;
    if (this._text.textContent !== text) {
      this._text.textContent = text;
    }
    this._time.textContent = time;
  }

  private _insert(): void {
    if (this.isDisposed || this.cell.isDisposed) {
      return;
    }
    const layout = this.cell.layout as PanelLayout;
    const input = layout.widgets.findIndex((widget) => widget.hasClass("jp-Cell-inputWrapper"));
    layout.insertWidget(input + 1, this);
  }

  private readonly _text = document.createElement("span");
  private readonly _time = document.createElement("span");
}
