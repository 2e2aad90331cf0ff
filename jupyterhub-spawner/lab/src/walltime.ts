/**
 * Tells before Slurm ends this server's job: half an hour and five minutes before, with what can be done. The end is asked
 * for again and again, since an administrator may have given more time.
 */
import { Dialog, Notification, showDialog } from "@jupyterlab/apputils";
import { PageConfig, URLExt } from "@jupyterlab/coreutils";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { Api } from "./api.js";
import { look, NOTHING_TOLD, type Output } from "./ending.js";
import { told } from "./failure.js";
import { tell } from "./toast.js";
import { clock, sentence } from "./words.js";

const ASK_MS = 60_000;

export class WalltimeNotice {
  private _told = NOTHING_TOLD;
  /** The notice that stands in the page. */
  private _shown = "";

  constructor(
    private readonly _api: Api,
    private readonly _trans: TranslationBundle,
  ) {
    void this._look();
  }

  private async _look(): Promise<void> {
    try {
      const ends = (await this._api.overview()).server_ends;
      const next = look(this._told, ends, Date.now() / 1000);
      this._told = next.told;
      for (const output of next.outputs) {
        this._carryOut(output);
      }
    } catch {
      // A server that doesn't answer is told of by JupyterLab itself.
    }
    window.setTimeout(() => void this._look(), ASK_MS);
  }

  private _carryOut(output: Output): void {
    if (output.kind === "dismiss") {
      Notification.dismiss(this._shown);
      return;
    }
    // The time of day stays true for as long as the notice stands.
    const at = clock(output.endsS, Date.now());
    const text = this._trans.__("Slurm ends this server at %1. Save your notebooks.", at);
    this._shown = tell("warning", text, this._trans, {
      autoClose: false,
      actions: [{ label: this._trans.__("More time"), callback: () => void askForMoreTime(this._api, this._trans) }],
    });
  }
}

/** Asks Slurm for more time, and says what came of it. */
export async function askForMoreTime(api: Api, trans: TranslationBundle): Promise<void> {
  try {
    const ends = await api.moreTime();
    const text =
      ends === null
        ? trans.__("This server has more time, without a limit.")
        : trans.__("This server has more time, until %1.", clock(ends, Date.now()));
    tell("success", text, trans, { autoClose: 10_000 });
  } catch (error) {
    await refused(sentence(told(error, trans)), trans);
  }
}

/** Why there is no more time, and what helps: too much for a notice. */
async function refused(body: string, trans: TranslationBundle): Promise<void> {
  const hub = PageConfig.getOption("hubPrefix");
  const buttons = [Dialog.cancelButton({ label: trans.__("Close") })];
  if (hub) {
    buttons.push(Dialog.okButton({ label: trans.__("The Hub’s page") }));
  }
  const result = await showDialog({ title: trans.__("No more time"), body, buttons, defaultButton: 0 });
  if (result.button.accept) {
    window.open(URLExt.join(hub, "home"), "_blank");
  }
}
