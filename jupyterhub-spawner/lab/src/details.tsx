/** What the badge shows when it is activated: why, where, on whose account, and what can be done. */
import { Dialog, ReactWidget, showDialog } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import * as React from "react";
import type { Api, JupyterId } from "./api.js";
import { attempt } from "./failure.js";
import type { KernelState } from "./kernel.js";
import { offered, stillOffered, waitOf, waits } from "./kernel.js";
import type { State } from "./notice.js";
import type { Watcher } from "./watcher.js";
import { badge, needed, span, undisturbed, waited, waitLine, where } from "./words.js";

export async function showDetails(watcher: Watcher, api: Api, trans: TranslationBundle): Promise<void> {
  const buttons = [Dialog.cancelButton({ label: trans.__("Close") })];
  const offer = offered(watcher.state);
  if (offer?.kind === "lingering") {
    buttons.push(Dialog.okButton({ label: trans.__("Release now") }));
  } else if (offer?.kind === "wait") {
    buttons.push(Dialog.warnButton({ label: trans.__("Stop waiting") }));
  }
  const body = ReactWidget.create(<Details watcher={watcher} api={api} trans={trans} />);
  // Enter closes: a wait is not given up by a slip.
  const result = await showDialog({ title: trans.__("GPU of this kernel"), body, buttons, defaultButton: 0 });
  // Meanwhile the cell may have begun: it was not offered to end that one.
  if (!result.button.accept || !offer || !stillOffered(offer, watcher.state)) {
    return;
  }
  if (offer.kind === "lingering") {
    watcher.release();
  } else {
    await attempt(() => watcher.kernel?.interrupt(), trans);
  }
}

/** The states besides those of a cell that waits that have a reason to tell. */
const TOLD: ReadonlySet<State> = new Set(["seat", "revoked"]);

interface IProps {
  readonly watcher: Watcher;
  readonly api: Api;
  readonly trans: TranslationBundle;
}

function Details({ watcher, api, trans }: IProps): React.JSX.Element {
  const now = useNow(watcher);
  const explained = useExplanation(watcher, api);
  const { state } = watcher;
  return (
    <div className="gh-Details">
      <p className="gh-Details-state">{badge(state, now, trans)}</p>
      {state.away && <p>{state.away}</p>}
      {explained.length === 0 && (waits(state) || TOLD.has(state.standing.state)) && (
        <p>{waitLine(state, now, trans)}</p>
      )}
      {explained.map((sentence) => (
        <p key={sentence}>{sentence}</p>
      ))}
      <dl>
        {facts(state, now, trans).map(([name, value]) => (
          <React.Fragment key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </React.Fragment>
        ))}
      </dl>
    </div>
  );
}

function facts(state: KernelState, now: number, trans: TranslationBundle): [string, string][] {
  const { standing } = state;
  const rows: [string, string | undefined][] = [
    [trans.__("Asked for"), state.need && needed(state.need, trans)],
    [trans.__("Granted"), "grant" in standing ? where(standing.grant, trans) : undefined],
    [trans.__("Undisturbed for"), undisturbed(standing, now, trans)],
    [trans.__("Waiting"), waits(state) ? waited(state, now, trans) : undefined],
    [trans.__("Account"), state.account],
    [trans.__("Pool"), state.pool],
  ];
  const used = [...state.ran.values()];
  if (used.length > 0) {
    const ran = used.reduce((sum, cell) => sum + (cell.ranMs ?? 0), 0);
    const cells = trans._n("%1 cell, %2", "%1 cells, %2", used.length, span(ran / 1000, trans));
    rows.push([trans.__("Ran in this window"), cells]);
  }
  return rows.filter((row): row is [string, string] => row[1] !== undefined);
}

/** The time, again with each change of the kernel and each second. */
function useNow(watcher: Watcher): number {
  const [now, setNow] = React.useState(Date.now());
  React.useEffect(() => {
    const tick = () => setNow(Date.now());
    const timer = window.setInterval(tick, 1000);
    watcher.changed.connect(tick);
    return () => {
      window.clearInterval(timer);
      watcher.changed.disconnect(tick);
    };
  }, [watcher]);
  return now;
}

interface Told {
  wait: string;
  /** The notice after which the sentences were asked for. */
  heard: number;
  sentences: readonly string[];
}

/** The sentences of `hop explain` of the wait of now; none while they come, or where nobody gives them. */
function useExplanation(watcher: Watcher, api: Api): readonly string[] {
  const [told, setTold] = React.useState<Told | null>(null);
  const kernel = watcher.kernel?.id as JupyterId | undefined;
  const wait = waitOf(watcher.state);
  const { heard } = watcher.state;
  // Each notice may have another place or reason.
  React.useEffect(() => {
    if (kernel && wait) {
      api.explain(kernel).then(
        // An answer may come after the answer to a later question.
        (sentences) => setTold((now) => (now && now.heard > heard ? now : { wait, heard, sentences })),
        () => setTold((now) => (now && now.heard > heard ? now : null)),
      );
    }
  }, [kernel, wait, heard, api]);
  return told && told.wait === wait ? told.sentences : [];
}
