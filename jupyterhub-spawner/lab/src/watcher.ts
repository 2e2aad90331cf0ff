/**
 * Feeds the pure state of `kernel.ts` with one kernel connection's messages, and announces this client to the kernel's
 * supervisor (docs/wiring.md, "The announcement"). One watcher belongs to one session context: it follows restarts and
 * exchanges of its kernel.
 */
import type { ISessionContext } from "@jupyterlab/apputils";
import { type Kernel, KernelMessage } from "@jupyterlab/services";
import { type JSONObject, UUID } from "@lumino/coreutils";
import type { IDisposable } from "@lumino/disposable";
import { type ISignal, Signal } from "@lumino/signaling";
import { isObject, type JsonObject } from "./json.js";
import { fresh, type Input, type KernelState, type Output, step } from "./kernel.js";
import { grantOfReply, ofMetadata, parse } from "./notice.js";

const TARGET = "gresshopper";
const VERSION = 1;

/** The name under which a kernelspec asks for our provisioner. */
const PROVISIONER = "gresshopper";

export class Watcher implements IDisposable {
  constructor(context: ISessionContext) {
    this._context = context;
    context.kernelChanged.connect(this._exchanged, this);
    context.connectionStatusChanged.connect(this._connection, this);
    context.statusChanged.connect(this._status, this);
    context.specsManager.specsChanged.connect(this._specs, this);
    context.propertyChanged.connect(this._property, this);
    this._attach(context.session?.kernel ?? null);
  }

  /** Whether the kernel is one of ours: by its kernelspec, or because it told a notice. */
  get ours(): boolean {
    return this._ours;
  }

  get state(): KernelState {
    return this._state;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel;
  }

  get context(): ISessionContext {
    return this._context;
  }

  /** Emitted when the state, or whether the kernel is ours, has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted for what is worth telling: a new standing, or a cell that ran. */
  get told(): ISignal<this, Output> {
    return this._told;
  }

  /** Emitted for each message of the kernel, before it is handled. */
  get message(): ISignal<this, Kernel.IAnyMessageArgs> {
    return this._messages;
  }

  /** Emitted for what the kernel's front tells of the outputs of cells. */
  get outputs(): ISignal<this, JsonObject> {
    return this._outputs;
  }

  /**
   * Emitted once after each announcement, with the first notice. From then on it is certain that this client hears what the
   * kernel publishes.
   */
  get hears(): ISignal<this, void> {
    return this._hears;
  }

  /** Emitted when the kernel restarted, ended or was exchanged. */
  get gone(): ISignal<this, void> {
    return this._gone;
  }

  /** Tells the kernel's front about the outputs of the notebook's cells. A console keeps none. */
  sayOutputs(word: { seen?: string[]; wanted?: boolean; shown?: string[] }): void {
    if (this._isNotebook) {
      this._send("comm_msg", { outputs: { notebook: this._context.path, ...word } });
    }
  }

  /** The notebook's default need, for cells that don't say what they need. */
  set defaultNeed(need: JSONObject | null) {
    if (JSON.stringify(need) !== JSON.stringify(this._defaultNeed)) {
      this._defaultNeed = need;
      this._send("comm_msg", { default_need: need });
    }
  }

  /** Ends the lingering lease. */
  release(): void {
    this._send("comm_msg", { release: true });
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    this._send("comm_close", {});
    this._attach(null);
    Signal.clearData(this);
  }

  private _attach(kernel: Kernel.IKernelConnection | null): void {
    this._kernel?.anyMessage.disconnect(this._message, this);
    this._kernel = kernel;
    this._comm = null;
    kernel?.anyMessage.connect(this._message, this);
    this._ours = false;
    this._lost();
    this._specs();
  }

  private _exchanged(_: unknown, args: { newValue: Kernel.IKernelConnection | null }): void {
    this._attach(args.newValue);
  }

  private _specs(): void {
    const name = this._kernel?.name;
    const spec = name === undefined ? undefined : this._context.specsManager.specs?.kernelspecs[name];
    if (spec && isOurs(spec.metadata) && !this._ours) {
      this._ours = true;
      this._changed.emit();
      this._announce();
    }
  }

  private _connection(_: unknown, status: Kernel.ConnectionStatus): void {
    // After a sleep or a lost network, what happened meanwhile is told anew.
    if (status === "connected" && this._comm) {
      this._announce();
    }
  }

  private _status(_: unknown, status: Kernel.Status): void {
    if (status === "restarting" || status === "autorestarting" || status === "dead") {
      this._restarted = true;
      this._lost();
    } else if (this._restarted && (status === "idle" || status === "busy")) {
      this._restarted = false;
      this._announce();
    }
  }

  private _property(_: unknown, property: "path" | "name" | "type"): void {
    if (property === "path" && this._comm) {
      this.sayOutputs({});
    }
  }

  private _lost(): void {
    this._input({ kind: "gone" });
    this._gone.emit();
  }

  private get _isNotebook(): boolean {
    return this._context.type === "notebook";
  }

  private _announce(): void {
    if (this._ours && this._kernel) {
      this._comm = UUID.uuid4();
      this._heard = false;
      const data: JSONObject = { version: VERSION };
      if (this._isNotebook) {
        data.outputs = { notebook: this._context.path };
      }
      this._send("comm_open", data);
      if (this._defaultNeed) {
        this._send("comm_msg", { default_need: this._defaultNeed });
      }
    }
  }

  /**
   * Sends a message of our comm. JupyterLab's own comm handler would start a subshell in the kernel for it, and the
   * supervisor answers without one.
   */
  private _send(msgType: "comm_open" | "comm_msg" | "comm_close", data: JSONObject): void {
    const kernel = this._kernel;
    // JupyterLab throws at what is sent to a dead kernel.
    if (!this._comm || !kernel || kernel.isDisposed || kernel.status === "dead") {
      return;
    }
    const content = { comm_id: this._comm, data, ...(msgType === "comm_open" && { target_name: TARGET }) };
    const message = KernelMessage.createMessage({
      msgType,
      channel: "shell",
      username: kernel.username,
      session: kernel.clientId,
      content,
    } as KernelMessage.IOptions<KernelMessage.ICommMsgMsg<"shell">>);
    // Nobody answers it with busy and idle, so its future would be open for ever.
    kernel.sendShellMessage(message, false, true).dispose();
  }

  private _message(_: unknown, { msg, direction }: Kernel.IAnyMessageArgs): void {
    const type = msg.header.msg_type;
    const parent = (msg.parent_header as { msg_id?: string }).msg_id ?? "";
    this._messages.emit({ msg, direction });
    if (direction === "send") {
      if (type === "execute_request") {
        const cellId = (msg.metadata as { cellId?: string }).cellId;
        this._input({ kind: "sent", msgId: msg.header.msg_id, cellId });
      }
    } else if (type === "status") {
      const notice = ofMetadata(msg.metadata);
      if (notice) {
        this._mine();
        this._input({ kind: "notice", notice, by: "status", parent });
      } else if ((msg as KernelMessage.IStatusMsg).content.execution_state === "idle") {
        this._input({ kind: "idle", msgId: parent });
      }
    } else if (type === "execute_reply") {
      const grant = grantOfReply(msg.metadata);
      this._input({ kind: "reply", msgId: parent, grant, ranMs: ranMs(msg) });
    } else if (type === "comm_msg" || type === "comm_close") {
      this._onComm(msg as KernelMessage.ICommMsgMsg | KernelMessage.ICommCloseMsg);
    }
  }

  private _onComm(msg: KernelMessage.ICommMsgMsg | KernelMessage.ICommCloseMsg): void {
    const { comm_id, data } = msg.content;
    if (comm_id !== this._comm) {
      return;
    }
    if (msg.header.msg_type === "comm_close") {
      // A supervisor that knows no announcement: `status` messages are all there is.
      this._comm = null;
      return;
    }
    if (isObject(data.outputs)) {
      this._outputs.emit(data.outputs);
    }
    const notice = parse(data);
    if (notice) {
      this._mine();
      this._input({ kind: "notice", notice, by: "comm" });
      if (!this._heard) {
        this._heard = true;
        this._hears.emit();
      }
    }
  }

  private _mine(): void {
    if (!this._ours) {
      this._ours = true;
      this._changed.emit();
    }
  }

  private _input(input: Input): void {
    const { state, outputs } = step(this._state, input, Date.now());
    if (state !== this._state) {
      this._state = state;
      this._changed.emit();
    }
    for (const output of outputs) {
      this._told.emit(output);
    }
  }

  private readonly _context: ISessionContext;
  private _kernel: Kernel.IKernelConnection | null = null;
  private _state = fresh(Date.now());
  private _ours = false;
  private _restarted = false;
  /** The id of the comm that announced us, or `null` where nobody answers one. */
  private _comm: string | null = null;
  /** Whether a notice came since the announcement. */
  private _heard = false;
  private _defaultNeed: JSONObject | null = null;
  private _disposed = false;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _told = new Signal<this, Output>(this);
  private readonly _messages = new Signal<this, Kernel.IAnyMessageArgs>(this);
  private readonly _outputs = new Signal<this, JsonObject>(this);
  private readonly _hears = new Signal<this, void>(this);
  private readonly _gone = new Signal<this, void>(this);
}

/** Whether a kernelspec's metadata names our provisioner, or says so itself. */
export function isOurs(metadata: unknown): boolean {
  const spec = metadata as {
    gresshopper?: unknown;
    kernel_provisioner?: { provisioner_name?: string };
  } | null;
  return spec?.gresshopper !== undefined || spec?.kernel_provisioner?.provisioner_name === PROVISIONER;
}

/** How long the cell of a reply ran, from the start that ipykernel writes into the reply's metadata. */
function ranMs(msg: KernelMessage.IMessage): number | null {
  const started = Date.parse(String((msg.metadata as { started?: string }).started ?? ""));
  const ended = Date.parse(msg.header.date);
  return Number.isFinite(started) && Number.isFinite(ended) ? Math.max(0, ended - started) : null;
}
