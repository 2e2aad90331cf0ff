import assert from "node:assert/strict";
import { it } from "node:test";
import { ObservableDisposableDelegate } from "@lumino/disposable";
import { Settings } from "../settings.js";

it("tells each that follows, now and at each change, as long as its owner lives", () => {
  const settings = new Settings();
  const [stays, goes] = [1, 2].map(() => new ObservableDisposableDelegate(() => undefined));
  const told: string[] = [];
  settings.follow(stays as ObservableDisposableDelegate, ({ badge }) => told.push(`stays: ${badge}`));
  settings.follow(goes as ObservableDisposableDelegate, ({ doneAfter }) => told.push(`goes: ${doneAfter}`));
  assert.deepEqual(told.splice(0), ["stays: true", "goes: 60"]);
  settings.change({ badge: false, doneAfter: 5 });
  assert.deepEqual(told.splice(0), ["stays: false", "goes: 5"]);
  goes?.dispose();
  settings.change({});
  assert.deepEqual(told, ["stays: true"], "what isn't set is as at first");
  assert.equal(settings.now.doneAfter, 60);
});
