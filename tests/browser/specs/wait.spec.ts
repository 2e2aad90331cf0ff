/** The wait made visible: badge, line at the cell, details, and nothing of it in the notebook. */
import AxeBuilder from "@axe-core/playwright";
import type { Page } from "@playwright/test";
import { DONE, fakeGpu, WORK } from "../support/fakes";
import { expect, test } from "../support/fixtures";
import { Hub } from "../support/hub";
import { HOLD, NOTEBOOK7, notebook, type Person, release } from "../support/lab";
import { LAB, OLDEST } from "../support/lanes";
import type { Site } from "../support/site";

/** Alice's cell runs on the cluster's one GPU. */
async function aliceHolds(site: Site, alice: Person): Promise<void> {
  await alice.open("hold.ipynb", notebook([HOLD]));
  await alice.run(0);
  await expect.poll(() => site.hop("queue", "-a").map((row) => row.state)).toEqual(["RUNNING"]);
}

/** Notebook 7 has the panel in its list of files. */
const inLab = NOTEBOOK7 ? test.skip : test;

/** Has the kernel complete the code. Returns the kernel's status once nothing of that is on its way any more. */
function completed(page: Page, code: string): Promise<string> {
  return page.evaluate(async (code) => {
    interface Kernel {
      status: string;
      requestComplete(content: { code: string; cursor_pos: number }): Promise<unknown>;
    }
    const app = (window as unknown as { jupyterapp: { shell: { currentWidget: unknown } } }).jupyterapp;
    const panel = app.shell.currentWidget as { sessionContext: { session: { kernel: Kernel } } };
    const kernel = panel.sessionContext.session.kernel;
    await kernel.requestComplete({ code, cursor_pos: code.length });
    await new Promise((resolve) => setTimeout(resolve, 1500));
    return kernel.status;
  }, code);
}

/** axe-core's checks of a page. Its types are of another release of Playwright. */
function axe(page: Page): AxeBuilder {
  return new AxeBuilder({ page: page as never });
}

test("badge", async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.open("badge.ipynb", notebook(["%%gpu 1\nimport time; time.sleep(1.5)\nprint('mine')"]));
  await expect(bob.badge).toHaveText("CPU");
  await bob.run(0);
  await expect(bob.badge).toHaveText(/^next in the queue/);
  await expect(bob.badge).toHaveAttribute("data-state", "queued");
  await expect(bob.waitLine(0)).toContainText("Waits for");
  await expect(bob.waitLine(0)).toContainText("in use");
  if (!NOTEBOOK7) {
    await expect(bob.statusBadge).toHaveText(/^next in the queue/);
  }
  await bob.shot("waiting");
  // The sentences name others only as far as `hop explain` does.
  await bob.badge.click();
  await expect(bob.page.locator(".gh-Details")).toContainText("next in line");
  await bob.shot("details");
  await bob.page.keyboard.press("Escape");
  release(site, "alice");
  await expect(bob.badge).toHaveText(/^c\d+n\d, GPU \d$/);
  await bob.hasRun(0);
  await expect(bob.waitLine(0)).toHaveCount(0);
  await expect(bob.badge).toHaveText(/GPU \d, kept \d+ s more/);
  await bob.shot("lingering");
  await expect(bob.badge).toHaveText("CPU", { timeout: 90_000 });
  await expect(bob.cell(0).locator(".jp-InputPrompt")).toHaveAttribute("title", /^Ran .*, waited .* s, on /);
});

test("details that outlive the wait", LAB, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.open("outlived.ipynb", notebook([HOLD]));
  await bob.run(0);
  await expect(bob.waitLine(0)).toBeVisible();
  let interrupts = 0;
  const interrupt = "**/api/kernels/*/interrupt*";
  await bob.page.route(interrupt, (route) => {
    interrupts += 1;
    return route.abort();
  });
  const dialog = bob.page.getByRole("dialog");
  // What fails is told.
  await bob.waitLine(0).getByRole("button", { name: "Stop waiting" }).click();
  await expect(dialog).toContainText("Your Jupyter server doesn’t answer.");
  await bob.page.keyboard.press("Escape");
  await expect(dialog).toHaveCount(0);
  expect(interrupts).toBe(1);
  await bob.badge.click();
  await expect(dialog).toContainText("next in line");
  release(site, "alice");
  await expect(dialog.locator(".gh-Details-state")).toHaveText(/GPU \d$/);
  await expect(dialog).not.toContainText("next in line");
  // The offer was to end the wait. The cell runs now.
  await dialog.getByRole("button", { name: "Stop waiting" }).click();
  await expect(dialog).toHaveCount(0);
  release(site, "bob");
  await bob.hasRun(0);
  await expect(bob.output(0)).toHaveCount(0);
  expect(interrupts).toBe(1);
  await bob.page.unroute(interrupt);
});

test("position", OLDEST, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.open("second.ipynb", notebook(["%%gpu 1\n1"]));
  await bob.run(0);
  await expect(bob.badge).toHaveText(/^next in the queue/);
  const page = await bob.another();
  await page.open("third.ipynb", notebook(["%%gpu 1\n1", "2"]));
  await page.run(0);
  await page.run(1);
  await expect(page.badge).toHaveText(/^place 2 in the queue/);
  // A narrow window has room for the words, below each other.
  await page.page.setViewportSize({ width: 700, height: 800 });
  await expect.poll(async () => (await page.waitLine(0).boundingBox())?.height ?? 1000).toBeLessThan(120);
  await page.page.setViewportSize({ width: 1280, height: 800 });
  // An interrupt takes the first one out; the second moves up.
  await bob.waitLine(0).getByRole("button", { name: "Stop waiting" }).click();
  await expect(bob.output(0)).toContainText("KeyboardInterrupt");
  await expect(bob.badge).toHaveText("CPU");
  await expect(page.badge).toHaveText(/^next in the queue/);
  await page.command("kernelmenu:interrupt");
  await expect(page.output(0)).toContainText("KeyboardInterrupt");
  await expect.poll(() => site.hop("queue", "-a").map((row) => row.state)).toEqual(["RUNNING"]);
  release(site, "alice");
  await page.page.close();
});

test("release now", OLDEST, async ({ site, bob }) => {
  await bob.open("linger.ipynb", notebook(["%%gpu 1\n1", "%gpu"]));
  await bob.run(0);
  await expect(bob.badge).toHaveText(/kept/);
  await bob.run(1);
  await expect(bob.output(1)).toContainText("is kept for the next cell");
  await bob.badge.click();
  await bob.page.getByRole("button", { name: "Release now" }).click();
  await expect(bob.badge).toHaveText("CPU");
  await expect.poll(() => site.hop("queue", "-a").length).toBe(0);
});

test("reload", OLDEST, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await alice.look("hold.ipynb");
  await expect(alice.badge).toHaveText(/GPU \d$/);
  await bob.open("reload.ipynb", notebook(["1", "%%gpu 1\n1"]));
  await bob.run(1);
  await expect(bob.waitLine(1)).toBeVisible();
  await bob.look("reload.ipynb");
  await expect(bob.badge).toHaveText(/^next in the queue/);
  await expect(bob.waitLine(1)).toContainText("Waits for 1 GPU");
  // The browser is closed for a while, and the cell gets its turn meanwhile.
  await bob.page.goto("about:blank");
  release(site, "alice");
  await expect.poll(() => site.hop("queue", "-a").map((row) => row.state)).toEqual([]);
  await bob.goto("reload.ipynb");
  await expect(bob.badge).toHaveText("CPU");
  await expect(bob.waitLine(1)).toHaveCount(0);
});

test("hopd stopped", LAB, async ({ site, bob }) => {
  await bob.open("away.ipynb", notebook(["%%gpu 1\n1", "2"]));
  await expect(bob.badge).toHaveText("CPU");
  site.stopHopd();
  await expect(bob.badge).toHaveText("CPU, no GPU service");
  await bob.run(1);
  await bob.hasRun(1);
  await bob.run(0);
  await expect(bob.waitLine(0)).toContainText("The scheduler is away");
  await bob.shot("away");
  site.deploy("hopd");
  await bob.hasRun(0);
  await expect(bob.waitLine(0)).toHaveCount(0);
});

test("slurmctld hangs", OLDEST, async ({ site, bob }) => {
  await bob.open("hung.ipynb", notebook(["1", "%%gpu 1\nprint('there', 'again')", "import os\nos.getc"]));
  await bob.run(0);
  await bob.hasRun(0);
  const controllers = site.pids("slurmctld");
  expect(controllers).not.toHaveLength(0);
  for (const pid of controllers) {
    process.kill(pid, "SIGSTOP");
  }
  try {
    await bob.run(1);
    await expect(bob.waitLine(1)).toContainText("is being started");
    await bob.kernelIs("busy");
    // A completion ends meanwhile: the cell waits still, and the notebook doesn't look idle.
    expect(await completed(bob.page, "os.getc")).toBe("busy");
    await bob.shot("slurmctld-hangs");
  } finally {
    for (const pid of controllers) {
      process.kill(pid, "SIGCONT");
    }
  }
  await expect(bob.output(1)).toHaveText("there again", { timeout: 120_000 });
  await bob.kernelIs("idle");
});

test("seat waits", OLDEST, async ({ site, bob }) => {
  // The kernelspec's last kernel, which says what the next one is.
  await bob.open("before.ipynb", notebook(["1"]));
  await bob.endKernels();
  site.try("root", "scancel", "-u", "bob", "-n", "kernels");
  site.poll("bob has no seat", 90, () => site.jobs("bob").every(({ name }) => name !== "kernels"));
  new Hub(site).open(false);
  try {
    site.write("bob", "seat.ipynb", notebook(["%%gpu 1\nprint('at', 'last')"]));
    await bob.look("seat.ipynb");
    await expect(bob.badge).toHaveText("kernel waits for a node");
    await bob.run(0);
    await bob.badge.click();
    await expect(bob.page.locator(".gh-Details")).toContainText("The partition is down.");
    await bob.page.keyboard.press("Escape");
    // It shows notices: no text stands in for them.
    await expect(bob.output(0)).toHaveCount(0);
  } finally {
    new Hub(site).open(true);
  }
  await expect(bob.output(0)).toHaveText("at last", { timeout: 120_000 });
  await expect(bob.badge).not.toHaveAttribute("data-state", "seat");
});

test("parked", LAB, async ({ site, alice, bob }) => {
  const batch = { gresshopper: { need: { gpus: 1 }, run: { class: "batch" } } };
  const cells = [WORK, { source: "begin()\nprint('the same:', work())", metadata: batch }];
  await alice.open("parked.ipynb", notebook(cells, fakeGpu(site)));
  await alice.run(0);
  await alice.hasRun(0);
  await alice.run(1);
  await expect(alice.badge).toHaveText(/GPU \d/);
  if (!NOTEBOOK7) {
    await alice.page.getByRole("tab", { name: "Kernels and GPUs" }).click();
    const row = alice.page.locator(".gh-Kernel", { hasText: "parked.ipynb" });
    await expect(row).toContainText("GPU 37 %, 0.0 of 1.0 GiB");
  }
  // Its quantum ends, and somebody waits.
  await bob.open("turn.ipynb", notebook([HOLD]));
  await bob.run(0);
  await expect(alice.badge).toHaveText(/^parked for others/);
  await expect(alice.waitLine(1)).toContainText("Parked in its middle");
  await expect(alice.waitLine(1)).toContainText("It has run for");
  await expect(bob.badge).toHaveText(/GPU \d/);
  await alice.shot("parked");
  await alice.badge.click();
  await expect(alice.page.locator(".gh-Details")).toContainText("was parked for others");
  await alice.page.keyboard.press("Escape");
  release(site, "bob");
  await expect(alice.badge).toHaveText(/GPU \d/);
  await expect(alice.waitLine(1)).toHaveCount(0);
  site.write("alice", DONE, "");
  await expect(alice.cell(1)).toContainText("the same: True");
});

test("revoked", OLDEST, async ({ site, alice }) => {
  // It puts its things in order before it ends.
  const cell = `%%gpu 1\nimport time\ntry:\n    time.sleep(600)\nfinally:\n    ${HOLD.split("\n").slice(1).join("\n    ")}`;
  await alice.open("revoked.ipynb", notebook([cell, "%%gpu 1\nprint('again', 'one')"]));
  await alice.run(0);
  await expect(alice.badge).toHaveText(/GPU \d/);
  site.as("root", "scancel", "-u", "gresshopper");
  await expect(alice.badge).toHaveText("GPU taken away");
  await expect(alice.page.locator(".gh-Announcer")).toHaveText("The GPU was taken away.");
  await expect(alice.cell(0)).toContainText("gresshopper: the GPU was taken away: ");
  await alice.badge.click();
  await expect(alice.page.locator(".gh-Details")).toContainText("The GPU was taken away.");
  await alice.shot("revoked");
  await alice.page.keyboard.press("Escape");
  release(site, "alice");
  await expect(alice.cell(0)).toContainText("LeaseRevoked: ");
  await expect(alice.badge).toHaveText("CPU");
  // Another pilot comes, and the kernel has gone on.
  await alice.run(1);
  await expect(alice.cell(1)).toContainText("again one", { timeout: 120_000 });
});

test("kernel out of memory", OLDEST, async ({ site, bob }) => {
  site.as("bob", "hop", "kernelspec", "install", "--user", "--mem", "512", "--name", "small");
  const greedy = "%%gpu 1\nbig = [bytes(b'1' * (1 << 20)) for _ in range(2000)]";
  await bob.open("greedy.ipynb", notebook(["x = 41", greedy, "print('x is', x)"], "small"));
  await bob.run(0);
  await bob.hasRun(0);
  await bob.run(1);
  await expect(bob.cell(1)).toContainText("the kernel ran out of memory (its limit is 512 MiB) and was killed.");
  await expect(bob.badge).toHaveText("CPU");
  await bob.shot("out-of-memory");
  // Jupyter's own words for a process that died; the variables are kept.
  const dialog = bob.page.getByRole("dialog");
  await expect(dialog).toContainText("appears to have died");
  await dialog.getByRole("button", { name: "Ok" }).click();
  await bob.run(2);
  await expect(bob.cell(2)).toContainText("x is 41");
});

test("saved", LAB, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  const cells = ["%%gpu 1\nprint('with a GPU')", "import sys\nprint('err', file=sys.stderr)\n6 * 7"];
  await bob.open("saved.ipynb", notebook(cells));
  await bob.run(0);
  await bob.run(1);
  await expect(bob.waitLine(0)).toBeVisible();
  const meanwhile = await bob.saved("saved.ipynb");
  expect(meanwhile.cells.map((cell) => cell.outputs)).toEqual([[], []]);
  release(site, "alice");
  await bob.hasRun(1);
  const ours = await bob.saved("saved.ipynb");
  await bob.open(
    "plain.ipynb",
    notebook(
      cells.map((cell) => cell.replace("%%gpu 1", "")),
      "python3",
    ),
  );
  await bob.run(0);
  await bob.run(1);
  await bob.hasRun(1);
  const plain = await bob.saved("plain.ipynb");
  expect(ours.cells.map((cell) => cell.outputs)).toEqual(plain.cells.map((cell) => cell.outputs));
  expect(ours.cells.map((cell) => cell.metadata)).toEqual(plain.cells.map((cell) => cell.metadata));
});

test("no need, no noise", OLDEST, async ({ bob }) => {
  await bob.open("quiet.ipynb", notebook(["1 + 1", "print(2)"]));
  const heard = await bob.listen();
  await bob.run(0);
  await bob.run(1);
  await bob.hasRun(1);
  const ours = await heard();
  await bob.open("plain.ipynb", notebook(["1 + 1", "print(2)"], "python3"));
  const heardPlain = await bob.listen();
  await bob.run(0);
  await bob.run(1);
  await bob.hasRun(1);
  expect(ours).toEqual(await heardPlain());
  await expect(bob.page.locator(".jp-Notebook .gh-WaitLine")).toHaveCount(0);
});

test("extension without our kernel", OLDEST, async ({ bob }) => {
  await bob.open("plain.ipynb", notebook(["1"], "python3"));
  await bob.run(0);
  await bob.hasRun(0);
  await expect(bob.badge).toBeHidden();
  expect(bob.complaints.filter((text) => /gresshopper|Comm not found/.test(text))).toEqual([]);
});

test("keyboard only", OLDEST, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.open("keys.ipynb", notebook(["%%gpu 1\n1"]));
  await bob.run(0);
  await expect(bob.waitLine(0)).toBeVisible();
  await bob.badge.focus();
  await bob.page.keyboard.press("Enter");
  await expect(bob.page.getByRole("dialog")).toContainText("GPU of this kernel");
  await expect(bob.page.getByRole("dialog").locator(":focus")).toHaveText("Close");
  await bob.page.keyboard.press("Escape");
  await expect(bob.page.getByRole("dialog")).toHaveCount(0);
  await bob.waitLine(0).getByRole("button").focus();
  await bob.page.keyboard.press("Enter");
  await expect(bob.output(0)).toContainText("KeyboardInterrupt");
  release(site, "alice");
});

for (const theme of ["JupyterLab Light", "JupyterLab Dark"]) {
  test(`axe, ${theme}`, theme.endsWith("Dark") ? OLDEST : LAB, async ({ site, alice, bob }) => {
    await aliceHolds(site, alice);
    await bob.open("axe.ipynb", notebook(["%%gpu 1\n1"]));
    await bob.command("apputils:change-theme", { theme });
    await bob.run(0);
    await expect(bob.waitLine(0)).toBeVisible();
    const found = await axe(bob.page).include(".gh-Badge").include(".gh-WaitLine").analyze();
    expect(found.violations.map((violation) => violation.help)).toEqual([]);
    await bob.badge.click();
    const dialog = await axe(bob.page).include(".gh-Details").analyze();
    expect(dialog.violations.map((violation) => violation.help)).toEqual([]);
    await bob.shot(`waiting-${theme.split(" ")[1]?.toLowerCase()}`);
    await bob.page.keyboard.press("Escape");
    await bob.command("apputils:change-theme", { theme: "JupyterLab Light" });
    await bob.command("kernelmenu:interrupt");
    release(site, "alice");
  });
}

test("screen reader", LAB, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.open("said.ipynb", notebook(["%%gpu 1\n1"]));
  const said = bob.page.locator(".gh-Announcer");
  await expect(said).toHaveAttribute("aria-live", "polite");
  await bob.run(0);
  await expect(said).toHaveText(/^The cell waits for/);
  release(site, "alice");
  await expect(said).toHaveText("The kernel holds no GPU.", { timeout: 90_000 });
});

test("property panel", OLDEST, async ({ bob }) => {
  await bob.open("need.ipynb", notebook(["print('x')"]));
  await bob.setCellMetadata(0, { gresshopper: { need: { gpus: 1 } } });
  await bob.run(0);
  await bob.hasRun(0);
  await expect(bob.cell(0).locator(".jp-InputPrompt")).toHaveAttribute("title", /GPU/);
  await bob.setCellMetadata(0, { gresshopper: { need: { gpus: 9999 } } });
  await bob.run(0);
  await expect(bob.output(0)).toContainText("gresshopper.need");
  // The run before had a GPU, this one none.
  expect(await bob.cell(0).locator(".jp-InputPrompt").getAttribute("title")).toBeNull();
});

test("property inspector", LAB, async ({ bob }) => {
  await bob.open("inspector.ipynb", notebook(["print('x')", "print('y')"]));
  await bob.page.getByRole("tab", { name: "Property Inspector" }).click();
  await bob.page.getByText("GPUs (Gresshopper)").click();
  // JupyterLab's form binds no label to its input.
  const field = (title: string) => bob.page.locator(`.jp-MetadataForm input[label="${title}"]`);
  const [gpus, type] = [field("GPUs of this cell"), field("Type of GPU")];
  const tooltip = (at: number) => bob.cell(at).locator(".jp-InputPrompt").getAttribute("title");
  await gpus.fill("1");
  await bob.run(0);
  await bob.hasRun(0);
  await expect(bob.output(0)).toHaveText("x");
  await expect.poll(() => tooltip(0)).toMatch(/GPU/);
  // The form takes them all; the kernel refuses them, and no cell of theirs runs.
  for (const wrong of ["-3", "1.5", "9999"]) {
    await gpus.fill(wrong);
    await bob.run(0);
    await expect(bob.output(0)).toContainText(`gpus is a whole number from 0 to 1024, not ${wrong}`);
    expect(await tooltip(0)).toBeNull();
  }
  await gpus.fill("1");
  await type.fill("no-such-type");
  await bob.run(0);
  await expect(bob.output(0)).toContainText("no-such-type");
  await type.fill("");
  await gpus.fill("");
  await bob.run(0);
  await expect(bob.output(0)).toHaveText("x");
  expect(await tooltip(0)).toBeNull();
  // For the whole notebook; a cell's own number goes before it.
  await field("GPUs of each cell of the notebook").fill("1");
  await gpus.fill("0");
  await bob.run(0);
  await bob.run(1);
  await bob.hasRun(1);
  await expect.poll(() => tooltip(1)).toMatch(/GPU/);
  expect(await tooltip(0)).toBeNull();
  const saved = await bob.saved("inspector.ipynb");
  expect(saved.metadata).toMatchObject({ gresshopper: { need: { gpus: 1 } } });
  expect(saved.cells.map((cell) => cell.metadata)).toMatchObject([{ gresshopper: { need: { gpus: 0 } } }, {}]);
});

test("the notebook's default need", LAB, async ({ bob }) => {
  await bob.open("default.ipynb", notebook(["1", "%%cpu\n2"], undefined, { gresshopper: { need: { gpus: 1 } } }));
  await bob.run(0);
  await bob.hasRun(0);
  await expect(bob.cell(0).locator(".jp-InputPrompt")).toHaveAttribute("title", /GPU/);
  await bob.run(1);
  await bob.hasRun(1);
  expect(await bob.cell(1).locator(".jp-InputPrompt").getAttribute("title")).toBeNull();
});

test("settings off", LAB, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.settings({ badge: false, cellLine: false, panel: false });
  await bob.open("off.ipynb", notebook(["%%gpu 1\n1"]));
  await bob.run(0);
  await expect.poll(() => site.hop("queue", "-a").length).toBe(2);
  await bob.page.waitForTimeout(1000);
  await expect(bob.badge).toBeHidden();
  await expect(bob.waitLine(0)).toHaveCount(0);
  await expect(bob.page.getByRole("tab", { name: "Kernels and GPUs" })).toBeHidden();
  await bob.command("kernelmenu:interrupt");
  await expect(bob.output(0)).toContainText("KeyboardInterrupt");
  await bob.settings({});
  await bob.goto("off.ipynb");
  await bob.run(0);
  await expect(bob.badge).toHaveText(/^next in the queue/);
  await expect(bob.waitLine(0)).toBeVisible();
  release(site, "alice");
});

inLab("panel", LAB, async ({ site, alice, bob }) => {
  await aliceHolds(site, alice);
  await bob.open("idle.ipynb", notebook(["1"]));
  const other = await bob.another();
  await other.open("waits.ipynb", notebook(["%%gpu 1\n1"]));
  await other.run(0);
  await other.page.getByRole("tab", { name: "Kernels and GPUs" }).click();
  const rows = other.page.locator(".gh-Kernel");
  await expect(rows).toHaveCount(2);
  await expect(rows.nth(0)).toContainText("waits.ipynb");
  await expect(rows.nth(0)).toContainText("next");
  await expect(rows.nth(1)).toContainText("idle.ipynb");
  await expect(rows.nth(1)).toContainText(/\d+ of \d+ MiB, CPU \d+\s%/);
  await expect(rows.nth(1).locator(".gh-Kernel-spark polyline")).toHaveAttribute("points", /^\d/);
  const found = await axe(other.page).include(".gh-Panel").analyze();
  expect(found.violations.map((violation) => violation.help)).toEqual([]);
  await other.shot("panel");
  await rows.nth(0).getByRole("button", { name: "Interrupt" }).click();
  await expect(other.output(0)).toContainText("KeyboardInterrupt");
  // The variables are lost: a slip ends nothing.
  const end = rows.nth(1).getByRole("button", { name: "End" });
  const dialog = other.page.getByRole("dialog");
  await end.click();
  await expect(dialog).toContainText("End the kernel of idle.ipynb?");
  await other.page.keyboard.press("Enter");
  await expect(dialog).toHaveCount(0);
  await end.click();
  await dialog.getByRole("button", { name: "End" }).click();
  await expect(rows).toHaveCount(1);
  await other.page.route("**/gresshopper/api/v1/kernels*", (route) => route.abort());
  await expect(other.page.locator(".gh-Panel").getByRole("alert")).toHaveText(
    "The kernels can’t be listed: your Jupyter server doesn’t answer.",
  );
  await other.page.close();
  release(site, "alice");
});

inLab("hibernate, wake, move", LAB, async ({ bob }) => {
  const where = "import os; print(os.environ['SLURMD_NODENAME'], x)";
  await bob.open("sleeper.ipynb", notebook(["x = 41", where, where, `%%gpu 1\n${where}`]));
  await bob.run(0);
  await bob.hasRun(0);
  await bob.page.getByRole("tab", { name: "Kernels and GPUs" }).click();
  const row = bob.page.locator(".gh-Kernel");
  await row.getByRole("button", { name: "Hibernate" }).click();
  await expect(row).toHaveAttribute("data-state", "asleep");
  await row.getByRole("button", { name: "Wake" }).click();
  await expect(row).toHaveAttribute("data-state", "idle");
  await bob.run(1);
  await expect(bob.output(1)).toContainText("41");
  const node = (await bob.output(1).innerText()).split(" ")[0] as string;
  await expect(row.locator(".gh-Kernel-state")).toHaveText(node);
  await row.getByRole("button", { name: "Move" }).click();
  await expect(row.locator(".gh-Kernel-state")).toHaveText(new RegExp(`^(?!${node}$)c\\d+n\\d$`));
  await bob.run(2);
  await expect(bob.output(2)).toContainText("41");
  expect((await bob.output(2).innerText()).split(" ")[0]).not.toBe(node);
  // The replica of now knows this page, too.
  await bob.run(3);
  await expect(bob.badge).toHaveText(/GPU \d/);
  await expect(bob.output(3)).toContainText("41");
});
