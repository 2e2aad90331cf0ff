/** Failures of what a person asked for, told in the words that are for that person. */
import { showErrorMessage } from "@jupyterlab/apputils";
import { ServerConnection } from "@jupyterlab/services";
import type { TranslationBundle } from "@jupyterlab/translation";
import { sentence } from "./words.js";

/** Does what was asked for. A failure is a dialog, never a promise that nobody handles. */
export async function attempt(act: () => Promise<unknown> | undefined, trans: TranslationBundle): Promise<void> {
  try {
    await act();
  } catch (error) {
    await showErrorMessage(trans.__("That didn’t work"), sentence(told(error, trans)));
  }
}

/** An error without the name of its class. */
export function told(error: unknown, trans: TranslationBundle): string {
  if (error instanceof ServerConnection.NetworkError) {
    return trans.__("your Jupyter server doesn’t answer");
  }
  return error instanceof Error ? error.message : String(error);
}
