/** Our notices in JupyterLab's corner. What JupyterLab would cut off is behind a button. */
import { Dialog, Notification, showDialog } from "@jupyterlab/apputils";
import type { TranslationBundle } from "@jupyterlab/translation";
import { fitted } from "./words.js";

type Options = Notification.IOptions<null>;

/** Shows the notice; its id. */
export function tell(
  type: Notification.TypeOptions,
  text: string,
  trans: TranslationBundle,
  options: Options,
): string {
  const shown = fitted(text);
  const actions = [...(options.actions ?? [])];
  if (shown !== text) {
    const buttons = [Dialog.cancelButton({ label: trans.__("Close") })];
    actions.push({ label: trans.__("Details"), callback: () => void showDialog({ body: text, buttons }) });
  }
  return Notification.emit(shown, type, { ...options, actions });
}
