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
import iconSvg from "./icon.js";
import { KernelPanelWidget } from "./panel.js";
import { Rejoined } from "./rejoined.js";
import { WalltimeNotice } from "./walltime.js";
import type { Watcher } from "./watcher.js";
import { isKernelPanel, Watchers } from "./watchers.js";

const PLUGIN = "@gresshopper/lab:plugin";

namespace CommandIds {
  export const details = "gresshopper:show-details";
  export const release = "gresshopper:release";
}

/** The settings of `schema/plugin.json`. */
interface ISettings {
  badge: boolean;
  cellLine: boolean;
  panel: boolean;
  doneAfter: number;
}

const DEFAULTS: ISettings = { badge: true, cellLine: true, panel: true, doneAfter: 60 };

/** What all parts share. */
interface IShared {
  readonly app: JupyterFrontEnd;
  readonly watchers: Watchers;
  readonly api: Api;
  readonly trans: TranslationBundle;
  /** Calls back with the settings, now and at each change. */
  readonly onSettings: (apply: (settings: ISettings) => void) => void;
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
      onSettings: loadSettings(registry),
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

/** Reads the settings once; who asks for them is told at each change. */
function loadSettings(registry: ISettingRegistry | null): IShared["onSettings"] {
  let settings = DEFAULTS;
  const asked: ((settings: ISettings) => void)[] = [];
  registry?.load(PLUGIN).then(
    (loaded) => {
      const apply = () => {
        settings = { ...DEFAULTS, ...(loaded.composite as unknown as ISettings) };
        for (const tell of asked) {
          tell(settings);
        }
      };
      loaded.changed.connect(apply);
      apply();
    },
    (error) => console.error(`${PLUGIN}: the settings can't be read`, error),
  );
  return (apply) => {
    asked.push(apply);
    apply(settings);
  };
}

function watchNotebook(panel: NotebookPanel, shared: IShared): void {
  const watcher = shared.watchers.of(panel);
  const lines = new CellLines(panel, watcher, shared.trans);
  const done = new DoneNotice(panel, watcher, shared.trans);
  Rejoined.serve(panel, watcher, shared.trans);
  shared.onSettings((settings) => {
    lines.enabled = settings.cellLine;
    done.afterS = settings.doneAfter;
  });
  void panel.context.ready.then(() => {
    const model = panel.content.model;
    const tell = () => {
      const ours = model?.getMetadata("gresshopper") as { need?: JSONObject } | undefined;
      watcher.defaultNeed = ours?.need ?? null;
    };
    model?.metadataChanged.connect(tell);
    tell();
  });
}

function badgeFor(shared: IShared, watcher?: Watcher): Badge {
  const open = (of: Watcher) => void showDetails(of, shared.api, shared.trans);
  const badge = new Badge({ trans: shared.trans, open, watcher });
  shared.onSettings((settings) => badge.toggleClass("gh-mod-off", !settings.badge));
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
  const open = (path: string) => void app.commands.execute("docmanager:open", { path });
  const panel = new KernelPanelWidget({ api, services: app.serviceManager, trans, open });
  panel.title.icon = new LabIcon({ name: "gresshopper:gpu", svgstr: iconSvg });
  app.shell.add(panel, "left", { rank: 290, type: "GPU" });
  shared.onSettings((settings) => {
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
