/**
 * Tells before Slurm ends this server's job: half an hour and five minutes before, with what can be done. The end is asked
 * for again and again, since an administrator may have given more time.
 */
import { Notification } from "@jupyterlab/apputils";
import { PageConfig, URLExt } from "@jupyterlab/coreutils";
import type { TranslationBundle } from "@jupyterlab/translation";
import type { Api } from "./api.js";
import { due } from "./ending.js";
import { span } from "./words.js";

const ASK_MS = 60_000;

export class WalltimeNotice {
  private readonly _told = new Set<number>();
  private _ends: number | null = null;
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
      this._tell((await this._api.overview()).server_ends);
    } catch {
      // A server that doesn't answer is told of by JupyterLab itself.
    }
    window.setTimeout(() => void this._look(), ASK_MS);
  }

  private _tell(ends: number | null): void {
    if (ends !== this._ends) {
      // More time, or less: what was told no longer holds.
      this._told.clear();
      this._ends = ends;
    }
    const nowS = Date.now() / 1000;
    const warning = due(ends, nowS, this._told);
    if (ends === null || warning === null) {
      return;
    }
    this._told.add(warning);
    const minutes = Math.max(1, Math.round((ends - nowS) / 60));
    const text = this._trans._n(
      "Slurm ends this server in %1 minute. Save your notebooks.",
      "Slurm ends this server in %1 minutes. Save your notebooks.",
      minutes,
    );
    Notification.dismiss(this._shown);
    this._shown = Notification.warning(text, {
      autoClose: false,
      actions: [{ label: this._trans.__("More time"), callback: () => void askForMoreTime(this._api, this._trans) }],
    });
  }
}

/** Asks Slurm for more time, and says what came of it. */
export async function askForMoreTime(api: Api, trans: TranslationBundle): Promise<void> {
  try {
    const ends = await api.moreTime();
    const left = ends === null ? trans.__("without a limit") : span(ends - Date.now() / 1000, trans);
    Notification.success(trans.__("This server has more time: %1.", left), { autoClose: 10_000 });
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    const hub = PageConfig.getOption("hubPrefix");
    const actions = hub
      ? [{ label: trans.__("The Hub’s page"), callback: () => void window.open(URLExt.join(hub, "home"), "_blank") }]
      : [];
    Notification.error(text, { autoClose: false, actions });
  }
}
