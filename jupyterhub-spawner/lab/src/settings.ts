/** The settings of `schema/plugin.json`, and what follows their changes. */
import type { IObservableDisposable } from "@lumino/disposable";
import { Signal } from "@lumino/signaling";

export interface ISettings {
  readonly badge: boolean;
  readonly cellLine: boolean;
  readonly panel: boolean;
  /** Cells that took at least this many seconds, waiting included, are told; 0 tells none. */
  readonly doneAfter: number;
}

const DEFAULTS: ISettings = { badge: true, cellLine: true, panel: true, doneAfter: 60 };

export class Settings {
  get now(): ISettings {
    return this._now;
  }

  change(values: Partial<ISettings>): void {
    this._now = { ...DEFAULTS, ...values };
    this._changed.emit();
  }

  /** Calls back now, and at each change until the owner is disposed: nothing else would end it. */
  follow(owner: IObservableDisposable, apply: (settings: ISettings) => void): void {
    const tell = () => apply(this._now);
    this._changed.connect(tell);
    owner.disposed.connect(() => this._changed.disconnect(tell));
    tell();
  }

  private _now = DEFAULTS;
  private readonly _changed = new Signal<this, void>(this);
}
