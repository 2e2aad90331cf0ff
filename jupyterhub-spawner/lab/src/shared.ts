/**
 * What all views of a document share ("New View for Notebook"): it is made for the first view, stays for those that are
 * left when a view is closed, and is disposed with the last one.
 */
import type { IDisposable, IObservableDisposable } from "@lumino/disposable";

interface IEntry<View, Thing> {
  readonly views: View[];
  readonly thing: Thing;
}

export class Shared<
  Document extends object,
  View extends IObservableDisposable,
  Thing extends Pick<IDisposable, "dispose">,
> {
  /** What the document's views share, this one among them. `make` gets the open views, the oldest first, as they change. */
  of(document: Document, view: View, make: (views: readonly View[]) => Thing): Thing {
    const entry = this._entries.get(document);
    if (entry?.views.includes(view)) {
      return entry.thing;
    }
    const views = entry?.views ?? [];
    views.push(view);
    view.disposed.connect(() => this._close(document, view));
    if (entry) {
      return entry.thing;
    }
    const thing = make(views);
    this._entries.set(document, { views, thing });
    return thing;
  }

  private _close(document: Document, view: View): void {
    const entry = this._entries.get(document);
    entry?.views.splice(entry.views.indexOf(view), 1);
    if (entry?.views.length === 0) {
      this._entries.delete(document);
      entry.thing.dispose();
    }
  }

  private readonly _entries = new Map<Document, IEntry<View, Thing>>();
}
