/**
 * Shows in a notebook what its cells put out while no page was there. `away.ts` decides; here JupyterLab's output areas
 * get what it says, by futures that stand for requests of a page that is gone.
 */
import type { CodeCell, ICodeCellModel } from "@jupyterlab/cells";
import type { NotebookPanel } from "@jupyterlab/notebook";
import { type Kernel, KernelMessage } from "@jupyterlab/services";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { IDisposable } from "@lumino/disposable";
import { Signal } from "@lumino/signaling";
import { Away, type KeptCell, keptCell, type Message, type Output } from "./away.js";
import { isObject, type JsonObject } from "./json.js";
import { Shared } from "./shared.js";
import type { Watcher } from "./watcher.js";
import { droppedLine } from "./words.js";

type Request = KernelMessage.IExecuteRequestMsg;
type Reply = KernelMessage.IExecuteReplyMsg;

/** The front keeps no more cells. */
const CELLS = 1000;

type Context = NotebookPanel["context"];

/** By notebook: its views share its outputs. */
const served = new Shared<Context, NotebookPanel, Rejoined>();

export class Rejoined implements IDisposable {
  /** Serves the notebook of that panel. In a shared document each of its pages would take the cells over. */
  static serve(panel: NotebookPanel, watcher: Watcher, trans: TranslationBundle): void {
    const { context } = panel;
    if (!context.model.collaborative) {
      const rejoined = served.of(context, panel, (views) => new Rejoined(context, views, watcher, trans));
      // The panel's own signal comes when its cells are gone.
      panel.content.disposed.connect(() => rejoined._closed(panel));
    }
  }

  private constructor(
    context: Context,
    /** The oldest first. */
    private readonly _views: readonly NotebookPanel[],
    private readonly _watcher: Watcher,
    private readonly _trans: TranslationBundle,
  ) {
    _watcher.message.connect(this._message, this);
    _watcher.outputs.connect(this._told, this);
    _watcher.hears.connect(this._ask, this);
    _watcher.gone.connect(this._gone, this);
    context.saveState.connect(this._saved, this);
    void context.ready.then(() => {
      const waiting = this._waiting ?? [];
      this._waiting = null;
      for (const later of waiting) {
        later();
      }
    });
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    Signal.clearData(this);
  }

  private _message(_: unknown, { msg, direction }: Kernel.IAnyMessageArgs): void {
    const type = msg.header.msg_type;
    if (direction === "send") {
      if (type === "execute_request" && "cellId" in msg.metadata) {
        this._do(() => this._away.sent(msg.header.msg_id));
      }
      return;
    }
    const parent = (msg.parent_header as { msg_id?: string }).msg_id ?? "";
    if (msg.channel === "iopub") {
      this._do(() => this._away.heard(parent, { type, content: msg.content as unknown as JsonObject }));
    } else if (type === "execute_reply") {
      this._do(() => this._away.replied(parent));
    }
  }

  private _told(_: unknown, told: JsonObject): void {
    const cell = keptCell(told.cell);
    const ended = told.ended;
    if (cell) {
      this._do(() => this._away.kept(cell, this._source(cell.cellId)));
    } else if (isObject(ended) && typeof ended.id === "string" && isObject(ended.reply)) {
      const { id, reply } = ended;
      this._do(() => this._away.ended(id, reply));
    }
  }

  private _ask(): void {
    this._watcher.sayOutputs({ wanted: true, shown: [...this._unsaved] });
  }

  private _gone(): void {
    if (this._open.length > 0) {
      this._do(() => this._away.gone());
    }
  }

  /**
   * The panel's cells are about to go. JupyterLab ends the futures of the cells that were once in view; the others' would
   * go on with outputs that another view now takes over.
   */
  private _closed(panel: NotebookPanel): void {
    if (this._open.length === 0 || !this._watcher.ours) {
      return;
    }
    for (const cell of codeCells(panel)) {
      cell.outputArea.future?.dispose();
    }
    const left = this._open.flatMap(codeCells).map(requestOf);
    this._do(() => this._away.closed(new Set(left)));
  }

  /** Does it in its turn: a notebook that is not there yet has no cells. */
  private _do(decide: () => Output[]): void {
    const act = () => {
      for (const output of this._disposed ? [] : decide()) {
        this._carryOut(output);
      }
    };
    if (this._waiting) {
      this._waiting.push(act);
    } else {
      act();
    }
  }

  private _carryOut(output: Output): void {
    switch (output.kind) {
      case "take":
        this._take(output.cell);
        break;
      case "show":
        this._futures.get(output.id)?.show(output.message);
        break;
      case "end":
        this._futures.get(output.id)?.end(output.reply);
        break;
      case "lose":
        this._futures.get(output.id)?.end(null);
        break;
      case "seen":
        this._isSeen(output.id);
        break;
      case "ask":
        this._ask();
        break;
    }
  }

  /** The front keeps the cell until the outputs are in the notebook's file, or the user has cleared them. */
  private _isSeen(id: string): void {
    this._unsaved.add(id);
    if (this._unsaved.size > CELLS) {
      this._unsaved.delete(this._unsaved.values().next().value as string);
    }
    this._futures.get(id)?.onceCleared(() => this._tellSeen([id]));
  }

  private _saved(_: unknown, state: string): void {
    if (state === "started") {
      this._saving = [...this._unsaved];
    } else if (state === "completed") {
      this._tellSeen(this._saving);
    }
  }

  private _tellSeen(ids: string[]): void {
    const seen = ids.filter((id) => this._unsaved.delete(id));
    if (seen.length > 0) {
      this._watcher.sayOutputs({ seen });
    }
  }

  /** As JupyterLab does when a cell is run. */
  private _take(kept: KeptCell): void {
    const views = this._find(kept.cellId);
    // The view that ran it must not go on beside us.
    const cell = views.find((one) => requestOf(one) === kept.id) ?? views[0];
    const kernel = this._watcher.kernel;
    // Nobody could answer an input that was asked for.
    if (!cell || !kernel || cell.outputArea.pendingInput) {
      this._away.left(kept.id);
      return;
    }
    const { model } = cell;
    model.sharedModel.transact(() => {
      model.clearExecution();
      cell.outputHidden = false;
    }, false);
    model.executionState = "running";
    model.trusted = true;
    const future = new Future(kept, kernel, model, () => {
      if (this._futures.get(kept.id) === future) {
        this._futures.delete(kept.id);
        this._away.left(kept.id);
      }
    });
    this._futures.set(kept.id, future);
    cell.outputArea.future = future;
    if (kept.dropped > 0) {
      const text = `${droppedLine(kept.dropped, this._trans)}\n`;
      future.show({ type: "stream", content: { name: "stderr", text } });
    }
  }

  private _source(cellId: string): string | null {
    return this._find(cellId)[0]?.model.sharedModel.getSource() ?? null;
  }

  /** The cell in each view. */
  private _find(cellId: string): CodeCell[] {
    return this._open.flatMap(codeCells).filter((cell) => cell.model.id === cellId);
  }

  private get _open(): NotebookPanel[] {
    return this._views.filter((view) => !view.content.isDisposed);
  }

  private readonly _away = new Away();
  /** Of the cells that were taken. They stay for later updates of displays, as JupyterLab's own. */
  private readonly _futures = new Map<string, Future>();
  /** What came before the notebook was there; `null` once it is. */
  private _waiting: (() => void)[] | null = [];
  /** Cells that were shown to their end, and are not in the notebook's file. */
  private readonly _unsaved = new Set<string>();
  /** Those of them that are in what is being saved. */
  private _saving: string[] = [];
  private _disposed = false;
}

function codeCells(panel: NotebookPanel): CodeCell[] {
  return panel.content.widgets.filter((cell): cell is CodeCell => cell.model.type === "code");
}

/** The request whose outputs the cell shows. */
function requestOf(cell: CodeCell): string {
  return cell.outputArea.future?.msg.header.msg_id ?? "";
}

/** Stands for a request of a page that is gone. */
class Future implements Kernel.IShellFuture<Request, Reply> {
  constructor(
    kept: KeptCell,
    private readonly _kernel: Kernel.IKernelConnection,
    private readonly _model: ICodeCellModel,
    private readonly _left: () => void,
  ) {
    this.msg = KernelMessage.createMessage<Request>({
      msgType: "execute_request",
      channel: "shell",
      msgId: kept.id,
      session: _kernel.clientId,
      username: _kernel.username,
      content: { code: kept.code },
      metadata: { cellId: kept.cellId },
    });
  }

  private _resolve!: (reply: Reply) => void;
  readonly msg: Request;
  readonly done = new Promise<Reply>((resolve) => {
    this._resolve = resolve;
  });
  onIOPub: Kernel.IShellFuture["onIOPub"] = () => undefined;
  onStdin: Kernel.IShellFuture["onStdin"] = () => undefined;
  onReply: (msg: Reply) => void | PromiseLike<void> = () => undefined;

  show({ type, content }: Message): void {
    const message = KernelMessage.createMessage({
      msgType: type,
      channel: "iopub",
      session: this._kernel.clientId,
      parentHeader: this.msg.header,
      content,
    } as unknown as KernelMessage.IOptions<KernelMessage.IDisplayDataMsg>);
    void this.onIOPub(message);
  }

  /** `null`: there will be no reply. */
  end(content: JsonObject | null): void {
    if (content) {
      const reply = KernelMessage.createMessage({
        msgType: "execute_reply",
        channel: "shell",
        session: this._kernel.clientId,
        parentHeader: this.msg.header,
        content,
      } as unknown as KernelMessage.IOptions<Reply>);
      void this.onReply(reply);
      this._resolve(reply);
      const count = content.execution_count;
      this._model.executionCount = typeof count === "number" ? count : null;
    }
    this._model.executionState = "idle";
  }

  /** Calls back when the cell shows no output any more. */
  onceCleared(then: () => void): void {
    const { outputs } = this._model;
    const look = () => {
      if (outputs.length === 0) {
        outputs.changed.disconnect(look);
        then();
      }
    };
    outputs.changed.connect(look);
  }

  sendInputReply(
    content: KernelMessage.IInputReplyMsg["content"],
    parent: KernelMessage.IInputReplyMsg["parent_header"],
  ): void {
    this._kernel.sendInputReply(content, parent);
  }

  /** Nobody knows the request but us, so nobody has hooks for its messages. */
  registerMessageHook(): void {}

  removeMessageHook(): void {}

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      this.onIOPub = () => undefined;
      this._left();
    }
  }

  private _disposed = false;
}
