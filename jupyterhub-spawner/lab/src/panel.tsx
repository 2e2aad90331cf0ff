/** The panel of one's own kernels: where they are, what they wait for, what they used, and what can be done to them. */
import { Dialog, ReactWidget, showDialog } from "@jupyterlab/apputils";
import type { ServiceManager } from "@jupyterlab/services";
import type { TranslationBundle } from "@jupyterlab/translation";
import { Button } from "@jupyterlab/ui-components";
import { Poll } from "@lumino/polling";
import * as React from "react";
import { type Act, carryOut, offered } from "./acts.js";
import type { Api, KernelRow, Overview } from "./api.js";
import { attempt, told } from "./failure.js";
import { type History, noted, points } from "./sparkline.js";
import { askForMoreTime } from "./walltime.js";
import { aboutText, gpuText, sentence, span } from "./words.js";

const POLL_MS = 5000;
/** The time left is shown from this many seconds on. */
const LEFT_SHOWN_S = 24 * 3600;

export interface IPanelOptions {
  readonly api: Api;
  readonly services: ServiceManager.IManager;
  readonly trans: TranslationBundle;
  /** Opens the notebook at that path. */
  readonly open: (path: string) => void;
}

export class KernelPanelWidget extends ReactWidget {
  constructor(private readonly _options: IPanelOptions) {
    super();
    this.id = "gresshopper-kernels";
    this.addClass("gh-Panel");
    this.title.caption = _options.trans.__("Kernels and GPUs");
    this._poll = new Poll({
      auto: false,
      name: "@gresshopper/lab:kernels",
      factory: () => this._look(),
      frequency: { interval: POLL_MS, backoff: true, max: 60_000 },
      standby: () => !this.isVisible || document.hidden,
    });
  }

  dispose(): void {
    this._poll.dispose();
    super.dispose();
  }

  render(): React.JSX.Element {
    const { trans } = this._options;
    return (
      <>
        <h2 className="gh-Panel-title">{trans.__("Kernels and GPUs")}</h2>
        {this._failed && <p role="alert">{this._failed}</p>}
        {this._overview && (
          <View
            overview={this._overview}
            memory={this._memory}
            busy={this._busy}
            trans={trans}
            open={this._options.open}
            act={(row, act) => void this._act(row, act)}
            moreTime={() => void this._moreTime()}
          />
        )}
      </>
    );
  }

  protected onAfterShow(): void {
    void (this._poll.state.phase === "constructed" ? this._poll.start() : this._poll.refresh());
  }

  private async _look(): Promise<void> {
    try {
      this._overview = await this._options.api.overview();
      this._memory = noted(this._memory, this._overview.kernels, "memory_mib");
      this._busy = noted(this._busy, this._overview.kernels, "gpu_percent");
      this._failed = null;
    } catch (error) {
      const { trans } = this._options;
      this._failed = sentence(trans.__("The kernels can’t be listed: %1", told(error, trans)));
      throw error;
    } finally {
      this.update();
    }
  }

  private async _moreTime(): Promise<void> {
    await askForMoreTime(this._options.api, this._options.trans);
    await this._poll.refresh();
  }

  private async _act(row: KernelRow, act: Act): Promise<void> {
    const { api, services, trans } = this._options;
    if (!(await isSure(row, act.action, trans))) {
      return;
    }
    await attempt(() => carryOut(act, api, services.kernels), trans);
    await this._poll.refresh();
  }

  private readonly _poll: Poll;
  private _overview: Overview | null = null;
  private _memory: History = new Map();
  private _busy: History = new Map();
  private _failed: string | null = null;
}

/** What loses variables is asked about once more; Enter keeps them. */
async function isSure(row: KernelRow, action: Act["action"], trans: TranslationBundle): Promise<boolean> {
  if (action !== "end" && action !== "forget") {
    return true;
  }
  const [title, label] =
    action === "end"
      ? [trans.__("End the kernel of %1?", row.name), trans.__("End")]
      : [trans.__("Forget the kernel of %1?", row.name), trans.__("Forget")];
  const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label })];
  const asked = await showDialog({ title, body: trans.__("Its variables are lost."), buttons, defaultButton: 0 });
  return asked.button.accept;
}

interface IViewProps {
  readonly overview: Overview;
  readonly memory: History;
  /** Of the lent GPUs' time. */
  readonly busy: History;
  readonly trans: TranslationBundle;
  readonly open: (path: string) => void;
  readonly act: (row: KernelRow, act: Act) => void;
  readonly moreTime: () => void;
}

function View({ overview, memory, busy, trans, open, act, moreTime }: IViewProps): React.JSX.Element {
  const left = overview.server_ends === null ? null : overview.server_ends - Date.now() / 1000;
  return (
    <>
      {overview.away && <p className="gh-Panel-away">{overview.away}</p>}
      {left !== null && left < LEFT_SHOWN_S && (
        <p className="gh-Panel-left">
          {trans.__("Your Jupyter server ends in %1.", span(left, trans))}{" "}
          <Button minimal small className="gh-Kernel-action" onClick={moreTime}>
            {trans.__("More time")}
          </Button>
        </p>
      )}
      {overview.kernels.length === 0 && <p>{trans.__("No kernel of yours runs.")}</p>}
      <ul className="gh-Panel-list">
        {overview.kernels.map((row) => (
          <Row
            key={row.id}
            row={row}
            memory={memory.get(row.id) ?? []}
            busy={busy.get(row.id) ?? []}
            trans={trans}
            open={open}
            act={act}
          />
        ))}
      </ul>
    </>
  );
}

function Row(
  props: { row: KernelRow; memory: readonly number[]; busy: readonly number[] } & Pick<
    IViewProps,
    "trans" | "open" | "act"
  >,
): React.JSX.Element {
  const { row, trans, open, act } = props;
  const { path } = row;
  return (
    <li className="gh-Kernel" data-state={row.state.toLowerCase()}>
      <div className="gh-Kernel-head">
        <span className="gh-Kernel-dot" aria-hidden="true" />
        {path === null ? (
          <span className="gh-Kernel-name">{row.name}</span>
        ) : (
          <button type="button" className="gh-Kernel-name" title={path} onClick={() => open(path)}>
            {row.name}
          </button>
        )}
        <span className="gh-Kernel-state">{stateText(row, trans)}</span>
      </div>
      {row.reason && <p className="gh-Kernel-reason">{sentence(row.reason)}</p>}
      {row.memory_mib !== null && <Memory row={row} used={row.memory_mib} past={props.memory} trans={trans} />}
      {(row.gpu_percent !== null || row.gpu_memory_mib !== null) && (
        <p className="gh-Kernel-use">
          <Spark past={props.busy} most={100} />
          {gpuText(row.gpu_percent, row.gpu_memory_mib, row.gpu_total_mib, trans)}
        </p>
      )}
      <p className="gh-Kernel-use">{useText(row, trans)}</p>
      <div className="gh-Kernel-actions">
        {offered(row).map((one) => (
          <Action key={one.action} name={nameOf(one.action, trans)} of={row} act={() => act(row, one)} />
        ))}
      </div>
    </li>
  );
}

/** Memory now and in the last minutes, towards its limit. */
function Memory(props: {
  row: KernelRow;
  used: number;
  past: readonly number[];
  trans: TranslationBundle;
}): React.JSX.Element {
  const { row, used, past, trans } = props;
  const most = row.limit_mib ?? Math.max(...past, 1);
  const text = memoryText(used, row.limit_mib, row.cpu_percent, trans);
  return (
    <p className="gh-Kernel-use" data-near={used > 0.9 * most && row.limit_mib !== null}>
      <Spark past={past} most={most} />
      {text}
    </p>
  );
}

/** A figure in the last minutes. */
function Spark(props: { past: readonly number[]; most: number }): React.JSX.Element {
  return (
    <svg className="gh-Kernel-spark" width="59" height="16" viewBox="0 0 59 16" aria-hidden="true">
      <polyline points={points(props.past, props.most, 59, 16)} />
    </svg>
  );
}

function Action(props: { name: string; of: KernelRow; act: () => void }): React.JSX.Element {
  const label = `${props.name}: ${props.of.name}`;
  return (
    <Button minimal small className="gh-Kernel-action" aria-label={label} title={label} onClick={props.act}>
      {props.name}
    </Button>
  );
}

function nameOf(action: Act["action"], trans: TranslationBundle): string {
  switch (action) {
    case "release":
      return trans.__("Release now");
    case "interrupt":
      return trans.__("Interrupt");
    case "hibernate":
      return trans.__("Hibernate");
    case "move":
      return trans.__("Move");
    case "wake":
      return trans.__("Wake");
    case "forget":
      return trans.__("Forget");
    case "end":
      return trans.__("End");
  }
}

function stateText(row: KernelRow, trans: TranslationBundle): string {
  const on = [row.node, row.gpus && trans.__("GPU %1", row.gpus)].filter(Boolean).join(", ");
  switch (row.state) {
    case "PENDING": {
      const place =
        row.position === null
          ? trans.__("waits")
          : row.position <= 1
            ? trans.__("next")
            : trans.__("place %1", row.position);
      return row.estimate_s === null || row.estimate_s < 1 ? place : `${place}, ${aboutText(row.estimate_s, trans)}`;
    }
    case "IDLE":
      return row.node ?? trans.__("no GPU");
    case "RUNNING":
      return on;
    case "LINGERING":
      return trans.__("%1, kept", on);
    case "ASLEEP":
      return trans.__("hibernates");
    case "SAVING":
      return trans.__("is being saved");
    case "MOVING":
      return trans.__("moves");
    case "SILENT":
      return trans.__("does not answer");
    case "LOST":
      return trans.__("is lost");
    case "REPLACING":
      return trans.__("is being replaced");
    default:
      return row.state.toLowerCase();
  }
}

function memoryText(used: number, limit: number | null, cpu: number | null, trans: TranslationBundle): string {
  const memory =
    limit === null ? trans.__("%1 MiB", Math.round(used)) : trans.__("%1 of %2 MiB", Math.round(used), limit);
  return cpu === null ? memory : trans.__("%1, CPU %2\u00a0%", memory, Math.round(cpu));
}

function useText(row: KernelRow, trans: TranslationBundle): string {
  const { gpu_s, wait_s } = row.week;
  return trans.__("This week: %1 GPU time, %2 waited.", span(gpu_s, trans), span(wait_s, trans));
}
