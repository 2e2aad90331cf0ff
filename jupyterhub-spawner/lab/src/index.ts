/**
 * The JupyterLab extension: it shows how the kernel of each notebook stands towards its GPU. This module only puts the
 * parts together; what is shown is decided in `kernel.ts` and worded in `words.ts`.
 */
import { ILabShell, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, IToolbarWidgetRegistry } from "@jupyterlab/apputils";
import { IConsoleTracker } from "@jupyterlab/console";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import { ITranslator, nullTranslator, type TranslationBundle } from "@jupyterlab/translation";
import { LabIcon } from "@jupyterlab/ui-components";
import type { JSONObject } from "@lumino/coreutils";
import { Announcer } from "./announcer.js";
import { Api } from "./api.js";
import { Badge } from "./badge.js";
import { CellLines } from "./cells.js";
import { showDetails } from "./details.js";
import { DoneNotice } from "./done.js";
import { attempt } from "./failure.js";
import iconSvg from "./icon.js";
import { KernelPanelWidget } from "./panel.js";
import { Rejoined } from "./rejoined.js";
import { type ISettings, Settings } from "./settings.js";
import { Shared } from "./shared.js";
import { WalltimeNotice } from "./walltime.js";
import type { Watcher } from "./watcher.js";
import { isKernelPanel, Watchers } from "./watchers.js";

const PLUGIN = "@gresshopper/lab:plugin";

namespace CommandIds {
  export const details = "gresshopper:show-details";
  export const release = "gresshopper:release";
}

/** What all parts share. */
interface IShared {
  readonly app: JupyterFrontEnd;
  readonly watchers: Watchers;
  readonly api: Api;
  readonly trans: TranslationBundle;
  readonly settings: Settings;
  /** Notices of the ends of cells, one for all views of a notebook. */
  readonly done: Shared<NotebookPanel["context"], NotebookPanel, DoneNotice>;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: "Shows which GPU a notebook has, or what it waits for.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [
    ISettingRegistry,
    ITranslator,
    IConsoleTracker,
    IToolbarWidgetRegistry,
    IStatusBar,
    ICommandPalette,
    ILabShell,
  ],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    registry: ISettingRegistry | null,
    translator: ITranslator | null,
    consoles: IConsoleTracker | null,
    toolbar: IToolbarWidgetRegistry | null,
    statusBar: IStatusBar | null,
    palette: ICommandPalette | null,
    labShell: ILabShell | null,
  ): void => {
    const shared: IShared = {
      app,
      watchers: new Watchers(),
      api: new Api(app.serviceManager.serverSettings),
      trans: (translator ?? nullTranslator).load("gresshopper"),
      settings: loadSettings(registry),
      done: new Shared(),
    };
    notebooks.widgetAdded.connect((_, panel) => watchNotebook(panel, shared));
    consoles?.widgetAdded.connect((_, panel) => void shared.watchers.of(panel));
    if (toolbar) {
      addToolbarBadge(toolbar, shared);
    }
    followCurrent(shared, statusBar, labShell);
    addPanel(shared);
    new WalltimeNotice(shared.api, shared.trans);
    addCommands(shared, palette);
  },
};

export default plugin;

function loadSettings(registry: ISettingRegistry | null): Settings {
  const settings = new Settings();
  registry?.load(PLUGIN).then(
    (loaded) => {
      const apply = () => settings.change(loaded.composite as Partial<ISettings>);
      loaded.changed.connect(apply);
      apply();
    },
    (error) => console.error(`${PLUGIN}: the settings can't be read`, error),
  );
  return settings;
}

function watchNotebook(panel: NotebookPanel, shared: IShared): void {
  const { settings, trans } = shared;
  const watcher = shared.watchers.of(panel);
  const lines = new CellLines(panel, watcher, trans);
  settings.follow(panel, ({ cellLine }) => {
    lines.enabled = cellLine;
  });
  shared.done.of(panel.context, panel, (views) => new DoneNotice(views, watcher, trans, settings));
  Rejoined.serve(panel, watcher, trans);
  void panel.context.ready.then(() => followNeed(panel, watcher));
}

/** Tells the kernel the notebook's default need. */
function followNeed(panel: NotebookPanel, watcher: Watcher): void {
  const { model } = panel.content;
  if (!model || panel.isDisposed) {
    return;
  }
  const tell = () => {
    const ours = model.getMetadata("gresshopper") as { need?: JSONObject } | undefined;
    watcher.defaultNeed = ours?.need ?? null;
  };
  model.metadataChanged.connect(tell);
  panel.disposed.connect(() => model.metadataChanged.disconnect(tell));
  tell();
}

function badgeFor(shared: IShared, watcher?: Watcher): Badge {
  const open = (of: Watcher) => void showDetails(of, shared.api, shared.trans);
  const badge = new Badge({ trans: shared.trans, open, watcher });
  shared.settings.follow(badge, (settings) => badge.toggleClass("gh-mod-off", !settings.badge));
  return badge;
}

function addToolbarBadge(toolbar: IToolbarWidgetRegistry, shared: IShared): void {
  toolbar.addFactory<NotebookPanel>("Notebook", "gresshopper-badge", (panel) =>
    badgeFor(shared, shared.watchers.of(panel)),
  );
}

/** Status bar and announcements follow the notebook or console that is in front. */
function followCurrent(shared: IShared, statusBar: IStatusBar | null, labShell: ILabShell | null): void {
  const announcer = new Announcer(shared.trans);
  const badge = badgeFor(shared);
  const follow = () => {
    const widget = shared.app.shell.currentWidget;
    const watcher = isKernelPanel(widget) ? shared.watchers.of(widget) : null;
    badge.watcher = watcher;
    announcer.watcher = watcher;
  };
  statusBar?.registerStatusItem(PLUGIN, { item: badge, align: "right", rank: 90 });
  if (labShell) {
    labShell.currentChanged.connect(follow);
  }
  // Notebook 7 has one document in a window, which comes after us.
  shared.watchers.added.connect(follow);
  void shared.app.restored.then(follow);
}

function addPanel(shared: IShared): void {
  const { app, api, trans } = shared;
  // The notebook of a kernel that runs may be deleted.
  const open = (path: string) => void attempt(() => app.commands.execute("docmanager:open", { path }), trans);
  const panel = new KernelPanelWidget({ api, services: app.serviceManager, trans, open });
  panel.title.icon = new LabIcon({ name: "gresshopper:gpu", svgstr: iconSvg });
  app.shell.add(panel, "left", { rank: 290, type: "GPU" });
  shared.settings.follow(panel, (settings) => {
    panel.title.className = settings.panel ? "" : "gh-mod-off";
  });
}

function addCommands(shared: IShared, palette: ICommandPalette | null): void {
  const { app, watchers, trans } = shared;
  const current = (): Watcher | null => {
    const widget = app.shell.currentWidget;
    const watcher = isKernelPanel(widget) ? watchers.of(widget) : null;
    return watcher?.ours ? watcher : null;
  };
  app.commands.addCommand(CommandIds.details, {
    label: trans.__("Show What the Kernel Waits for or Holds"),
    isEnabled: () => current() !== null,
    execute: async () => {
      const watcher = current();
      if (watcher) {
        await showDetails(watcher, shared.api, trans);
      }
    },
  });
  app.commands.addCommand(CommandIds.release, {
    label: trans.__("Release the GPU That Is Kept for the Next Cell"),
    isEnabled: () => current()?.state.standing.state === "lingering",
    execute: () => current()?.release(),
  });
  for (const command of [CommandIds.details, CommandIds.release]) {
    palette?.addItem({ command, category: trans.__("Kernel Operations") });
  }
}
