/**
 * Which cells of a notebook's page show outputs that came while no page was there (docs/wiring.md, "A page that was
 * away"). It decides, and draws nothing: `rejoined.ts` gives it what the page sends and hears, and carries out.
 *
 * The kernel's front keeps what a cell showed until a page has shown it to the end. A new page asks for that, takes the
 * cell over as a whole, and goes on with the cell's messages. A page that has heard all of a cell's messages changes
 * nothing.
 */
import { isObject, type JsonObject } from "./json.js";

/** A message of a cell on iopub. */
export interface Message {
  readonly type: string;
  readonly content: JsonObject;
}

/** A cell of which the front kept what it showed. */
export interface KeptCell {
  /** The msg_id of the cell's request. */
  readonly id: string;
  /** The notebook's id of the cell. */
  readonly cellId: string;
  readonly code: string;
  /** Messages that were published for the cell. */
  readonly heard: number;
  /** Messages that were too many to keep. */
  readonly dropped: number;
  readonly outputs: readonly Message[];
  /** The content of the cell's reply; `null` while it runs or waits. */
  readonly reply: JsonObject | null;
}

export type Output =
  /** The cell shows the kept outputs in place of all others. */
  | { readonly kind: "take"; readonly cell: KeptCell }
  /** A cell that was taken shows or changes an output. */
  | { readonly kind: "show"; readonly id: string; readonly message: Message }
  /** A cell that was taken is answered. */
  | { readonly kind: "end"; readonly id: string; readonly reply: JsonObject }
  /** A cell that was taken will never be answered. */
  | { readonly kind: "lose"; readonly id: string }
  /** The page has shown the cell to its end, or never will: once the notebook is saved, nobody lacks the cell. */
  | { readonly kind: "seen"; readonly id: string }
  /** The page asks the front again. */
  | { readonly kind: "ask" };

/** A cell that this page shows. */
interface Shown {
  /** By a request of this page, or taken. */
  readonly own: boolean;
  heard: number;
  idle: boolean;
  replied: boolean;
}

/** The most cells that are remembered as shown to their end. */
const REMEMBERED = 2000;

const DISPLAYS = ["display_data", "update_display_data", "execute_result"];

export class Away {
  /** The page sends a cell. */
  sent(id: string): Output[] {
    this._cells.set(id, { own: true, heard: 0, idle: false, replied: false });
    return [];
  }

  /** Something is published for the cell with that request. */
  heard(id: string, message: Message): Output[] {
    const cell = this._cells.get(id);
    if (cell) {
      cell.heard += 1;
    }
    if (message.type === "status" && message.content.execution_state === "idle") {
      if (cell?.own) {
        cell.idle = true;
        return this._done(id, cell);
      }
      return [];
    }
    return this._shown(id, cell, message);
  }

  /** The kernel answers a request of this page. */
  replied(id: string): Output[] {
    const cell = this._cells.get(id);
    if (!cell?.own) {
      return [];
    }
    cell.replied = true;
    return this._done(id, cell);
  }

  /** The front tells what it kept of a cell. `source` is the cell's text in this page, if the cell is there. */
  kept(cell: KeptCell, source: string | null): Output[] {
    if (this._ended.has(cell.id)) {
      return [{ kind: "seen", id: cell.id }];
    }
    const known = this._cells.get(cell.id);
    if (known?.heard === cell.heard && (cell.reply === null || known.replied)) {
      return [];
    }
    if (source !== cell.code) {
      this._declined.add(cell.id);
      return cell.reply ? this.ended(cell.id, cell.reply) : [];
    }
    this._cells.set(cell.id, { own: false, heard: cell.heard, idle: false, replied: false });
    const outputs: Output[] = [{ kind: "take", cell }];
    for (const message of cell.outputs) {
      outputs.push(...this._shown(cell.id, this._cells.get(cell.id), message));
    }
    return cell.reply ? [...outputs, ...this.ended(cell.id, cell.reply)] : outputs;
  }

  /** The front tells that a cell has ended. */
  ended(id: string, reply: JsonObject): Output[] {
    if (this._declined.delete(id)) {
      return [this._seen(id)];
    }
    const cell = this._cells.get(id);
    if (!cell && !this._ended.has(id)) {
      // The answer was lost: Jupyter Server drops messages while a cell puts out too many.
      return [{ kind: "ask" }];
    }
    if (!cell || cell.own || cell.replied) {
      return [];
    }
    cell.replied = true;
    return [{ kind: "end", id, reply }, this._seen(id)];
  }

  /** The cell shows something else now. */
  left(id: string): void {
    this._cells.delete(id);
    for (const [display, ids] of this._displays) {
      ids.delete(id);
      if (ids.size === 0) {
        this._displays.delete(display);
      }
    }
  }

  /**
   * A view of the notebook was closed. Only these requests have their outputs in a view that is left: of all others, what
   * comes from now on is lost here.
   */
  closed(left: ReadonlySet<string>): Output[] {
    for (const [id, cell] of this._cells) {
      if (cell.own && !left.has(id)) {
        this.left(id);
      }
    }
    return [{ kind: "ask" }];
  }

  /** The kernel restarted, ended or was exchanged. */
  gone(): Output[] {
    const lost = [...this._cells].filter(([, cell]) => !cell.own && !cell.replied);
    this._cells.clear();
    this._declined.clear();
    this._displays.clear();
    return lost.map(([id]) => ({ kind: "lose", id }));
  }

  /** A cell of this page's own needs nothing of ours. JupyterLab doesn't know displays in cells that were taken. */
  private _shown(id: string, cell: Shown | undefined, message: Message): Output[] {
    const outputs: Output[] = [];
    const display = DISPLAYS.includes(message.type) ? displayOf(message.content) : undefined;
    if (display !== undefined) {
      const update = { type: "update_display_data", content: message.content };
      for (const taken of this._displays.get(display) ?? []) {
        outputs.push({ kind: "show", id: taken, message: update });
      }
      if (message.type === "update_display_data") {
        return outputs;
      }
    }
    if (cell && !cell.own) {
      if (display !== undefined) {
        this._displays.set(display, (this._displays.get(display) ?? new Set()).add(id));
      }
      outputs.push({ kind: "show", id, message });
    }
    return outputs;
  }

  private _done(id: string, cell: Shown): Output[] {
    if (!cell.idle || !cell.replied) {
      return [];
    }
    this._cells.delete(id);
    return [this._seen(id)];
  }

  private _seen(id: string): Output {
    this._ended.add(id);
    if (this._ended.size > REMEMBERED) {
      this._ended.delete(this._ended.values().next().value as string);
    }
    return { kind: "seen", id };
  }

  private readonly _cells = new Map<string, Shown>();
  /** Cells that have not ended and are another text in this page, or not there. */
  private readonly _declined = new Set<string>();
  /** Cells that this page has shown to their end, the newest last. */
  private readonly _ended = new Set<string>();
  /** Which taken cells have a display of that id. */
  private readonly _displays = new Map<string, Set<string>>();
}

/** The kept cell in a JSON value, or `null` when the value is none. */
export function keptCell(value: unknown): KeptCell | null {
  if (!isObject(value)) {
    return null;
  }
  const { id, cell_id, code, heard, dropped, outputs, reply } = value;
  if (typeof id !== "string" || typeof cell_id !== "string" || typeof code !== "string") {
    return null;
  }
  const known = Array.isArray(outputs) ? outputs.map(outputOf).filter((output) => output !== null) : [];
  return {
    id,
    cellId: cell_id,
    code,
    heard: typeof heard === "number" ? heard : 0,
    dropped: typeof dropped === "number" ? dropped : 0,
    outputs: known,
    reply: isObject(reply) ? reply : null,
  };
}

function outputOf(value: unknown): Message | null {
  if (!isObject(value) || typeof value.msg_type !== "string" || !isObject(value.content)) {
    return null;
  }
  return { type: value.msg_type, content: value.content };
}

function displayOf(content: JsonObject): string | undefined {
  const id = isObject(content.transient) ? content.transient.display_id : undefined;
  return typeof id === "string" ? id : undefined;
}
