/** Calls back each second while there is something to count, and never otherwise. */
import type { IDisposable } from "@lumino/disposable";

export class Ticker implements IDisposable {
  constructor(private readonly _tick: () => void) {}

  set running(running: boolean) {
    if (running && this._timer === null) {
      this._timer = window.setInterval(this._tick, 1000);
    } else if (!running && this._timer !== null) {
      window.clearInterval(this._timer);
      this._timer = null;
    }
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this.running = false;
    this._disposed = true;
  }

  private _timer: number | null = null;
  private _disposed = false;
}
