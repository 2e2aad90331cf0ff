/** A page that is closed while its cells run, and opened again: the cells have their outputs. */
import * as fs from "node:fs";
import * as path from "node:path";
import { expect, test } from "../support/fixtures";
import { KERNEL, notebook, type Person, release } from "../support/lab";
import { LAB, OLDEST } from "../support/lanes";
import type { Site } from "../support/site";

/** Prints a line after the other and updates a display, until `release()` is called. The file `count` has the lines' number. */
const LINES = `import os, time
from IPython.display import display
shown = display("none", display_id=True)
n = 0
while not os.path.exists('release'):
    print("line", n)
    n += 1
    shown.update(f"{n} lines")
    with open("count.new", "w") as file:
        file.write(str(n))
    os.rename("count.new", "count")
    time.sleep(0.3)
os.remove('release')
print("done:", n)`;

/** A cell behind it. */
const BEHIND = "import sys\nprint('behind', n > 0, file=sys.stderr)\nn > 0";

/** How many lines bob's cell has printed. */
function printed(site: Site): number {
  const file = path.join(site.home("bob"), "count");
  return fs.existsSync(file) ? Number(fs.readFileSync(file, "utf8")) : 0;
}

/** Waits for some more lines than there are. */
async function more(site: Site): Promise<void> {
  const now = printed(site);
  await expect.poll(() => printed(site)).toBeGreaterThan(now + 4);
}

/** The numbers of the lines that the page shows at its first cell. */
async function lines(person: Person): Promise<number[]> {
  const shown = await person.output(0).allInnerTexts();
  return [...shown.join("\n").matchAll(/^line (\d+)$/gm)].map((found) => Number(found[1]));
}

/** Each line is there once, in its order, and more of them than `least`. */
async function showsAll(person: Person, least: number): Promise<void> {
  await expect.poll(async () => (await lines(person)).length).toBeGreaterThan(least);
  const shown = await lines(person);
  expect(shown).toEqual([...shown.keys()]);
}

function prompt(person: Person, at: number) {
  return person.cell(at).locator(".jp-InputPrompt");
}

/** A new page in which the first cell prints lines. */
async function prints(bob: Person, name: string, cells: string[] = [LINES], kernel = KERNEL): Promise<Person> {
  bob.site.remove("bob", "count");
  const page = await bob.another();
  await page.open(name, notebook(cells, kernel));
  for (const at of cells.keys()) {
    await page.run(at);
  }
  await showsAll(page, 1);
  return page;
}

test("closed and opened while cells run", async ({ site, bob }) => {
  const first = await prints(bob, "away.ipynb", [LINES, BEHIND, "1 / 0", "2"]);
  await first.page.close();
  const closed = printed(site);
  await more(site);
  const page = await bob.another();
  await page.look("away.ipynb");
  await showsAll(page, closed + 3);
  for (const at of [0, 1, 2, 3]) {
    await expect(prompt(page, at)).toHaveText("[*]:");
  }
  await expect(page.output(1)).toHaveCount(0);
  await page.kernelIs("busy");
  // The later ones come as they are printed.
  await showsAll(page, printed(site) + 2);
  await expect(page.output(0).first()).toHaveText(/^'\d+ lines'$/);
  release(site, "bob");
  await expect(prompt(page, 0)).toHaveText("[1]:");
  await expect(prompt(page, 1)).toHaveText("[2]:");
  await expect(prompt(page, 2)).toHaveText("[3]:");
  await expect(prompt(page, 3)).toHaveText("[ ]:");
  const count = printed(site);
  await showsAll(page, count - 1);
  await expect(page.output(0).last()).toContainText(`done: ${count}`);
  await expect(page.output(1)).toHaveText(["behind True", "True"]);
  await expect(page.output(2)).toContainText("ZeroDivisionError");
  await expect(page.output(3)).toHaveCount(0);
  await page.kernelIs("idle");
  // The notebook has what it would have had, and the page goes on as any other.
  const { cells } = await page.saved("away.ipynb");
  const all = [...Array(count).keys()].map((n) => `line ${n}\n`).join("");
  const text = { "text/plain": `'${count} lines'` };
  expect(cells[0]?.outputs).toEqual([
    { output_type: "display_data", data: text, metadata: {} },
    { output_type: "stream", name: "stdout", text: `${all}done: ${count}\n` },
  ]);
  // The server marks what it trusts.
  expect(cells.map((cell) => cell.metadata)).toEqual(Array(4).fill({ trusted: true }));
  await page.run(1);
  await expect(prompt(page, 1)).toHaveText("[4]:");
  await expect(page.output(1)).toHaveText(["behind True", "True"]);
  await page.page.close();
});

test("closed while the kernel's front is killed", LAB, async ({ site, bob }) => {
  const first = await prints(bob, "killed.ipynb", [LINES, BEHIND]);
  await first.page.close();
  await more(site);
  for (const pid of site.fronts()) {
    process.kill(pid, "SIGKILL");
  }
  const before = printed(site);
  await more(site);
  const page = await bob.another();
  await page.look("killed.ipynb");
  await showsAll(page, before + 3);
  await page.kernelIs("busy");
  release(site, "bob");
  await expect(prompt(page, 0)).toHaveText("[1]:");
  await expect(prompt(page, 1)).toHaveText("[2]:");
  await showsAll(page, printed(site) - 1);
  await expect(page.output(1)).toHaveText(["behind True", "True"]);
  await page.page.close();
});

test("open while the kernel's front is killed", LAB, async ({ site, bob }) => {
  const page = await prints(bob, "open.ipynb", [LINES, BEHIND]);
  // The server's own subscription may be back before the page's.
  for (let turn = 0; turn < 3; turn++) {
    for (const pid of site.fronts()) {
      process.kill(pid, "SIGKILL");
    }
    await more(site);
  }
  await showsAll(page, printed(site) - 2);
  release(site, "bob");
  await expect(prompt(page, 0)).toHaveText("[1]:");
  await expect(prompt(page, 1)).toHaveText("[2]:");
  await showsAll(page, printed(site) - 1);
  await expect(page.output(1)).toHaveText(["behind True", "True"]);
  await page.kernelIs("idle");
  await page.page.close();
});

test("opened after the cell's end", LAB, async ({ site, bob }) => {
  const first = await prints(bob, "ended.ipynb", [LINES, BEHIND]);
  // The file has some of the lines.
  await first.saved("ended.ipynb");
  await first.page.close();
  await more(site);
  release(site, "bob");
  await expect.poll(() => fs.existsSync(path.join(site.home("bob"), "release"))).toBe(false);
  let page = await bob.another();
  const shows = async () => {
    await expect(prompt(page, 0)).toHaveText("[1]:");
    await expect(prompt(page, 1)).toHaveText("[2]:");
    await showsAll(page, printed(site) - 1);
    await expect(page.output(0).last()).toContainText("done: ");
    await expect(page.output(1)).toHaveText(["behind True", "True"]);
  };
  await page.look("ended.ipynb");
  await shows();
  // Nobody has saved it.
  await page.page.close();
  page = await bob.another();
  await page.look("ended.ipynb");
  await shows();
  await page.command("notebook:clear-all-cell-outputs");
  await expect(page.output(0)).toHaveCount(0);
  await page.saved("ended.ipynb");
  await page.page.close();
  // Cleared outputs don't come back.
  page = await bob.another();
  await page.goto("ended.ipynb");
  await page.run(1);
  await expect(prompt(page, 1)).toHaveText("[3]:");
  await expect(page.output(0)).toHaveCount(0);
  await page.page.close();
  // The cell ended before the page was closed, and nobody has saved it.
  page = await bob.another();
  await page.look("ended.ipynb");
  await expect(prompt(page, 1)).toHaveText("[3]:");
  await expect(page.output(1)).toHaveText(["behind True", "True"]);
  await page.page.close();
});

/** Closes a view of the notebook; the others stay. */
async function closeView(person: Person, at: number): Promise<void> {
  const views = person.page.locator(".jp-NotebookPanel");
  const before = await views.count();
  await person.page.evaluate((index) => {
    type Panel = { title: { label: string }; close(): void };
    const app = (window as unknown as { jupyterapp: { shell: { widgets(area: string): Iterable<Panel> } } })
      .jupyterapp;
    [...app.shell.widgets("main")].filter((one) => one.title.label.endsWith(".ipynb"))[index]?.close();
  }, at);
  await expect(views).toHaveCount(before - 1);
}

test("two views, and each of them closed once", LAB, async ({ site, bob }) => {
  const cells = [LINES, `%%gpu 1\n${BEHIND}`];
  let page = await prints(bob, "views.ipynb", cells);
  const views = page.page.locator(".jp-NotebookPanel");
  // The newer one takes nothing with it.
  await page.command("docmanager:clone");
  await expect(views).toHaveCount(2);
  await closeView(page, 1);
  await showsAll(page, printed(site) + 2);
  // The one that ran the cells leaves them to the other.
  await page.command("docmanager:clone");
  await expect(views).toHaveCount(2);
  await closeView(page, 0);
  await showsAll(page, printed(site) + 2);
  await expect(page.output(0).first()).toHaveText(/^'\d+ lines'$/);
  await expect(prompt(page, 1)).toHaveText("[*]:");
  release(site, "bob");
  await expect(prompt(page, 0)).toHaveText("[1]:");
  await expect(page.badge).toHaveText(/GPU \d/);
  await expect(prompt(page, 1)).toHaveText("[2]:");
  await showsAll(page, printed(site) - 1);
  await expect(page.output(1)).toHaveText(["behind True", "True"]);
  await page.saved("views.ipynb");
  await page.page.close();
  // What was saved isn't kept beside the file: these cells lack their outputs, and stay so.
  site.write("bob", "views.ipynb", notebook(cells));
  page = await bob.another();
  await page.goto("views.ipynb");
  await page.run(1);
  await expect(prompt(page, 1)).toHaveText("[3]:");
  await expect(page.output(0)).toHaveCount(0);
  await page.page.close();
});

test("changed meanwhile", OLDEST, async ({ site, bob }) => {
  const first = await prints(bob, "changed.ipynb", [LINES, BEHIND]);
  await first.page.close();
  site.write("bob", "changed.ipynb", notebook([LINES.replace("done", "over"), "3"]));
  release(site, "bob");
  await expect.poll(() => fs.existsSync(path.join(site.home("bob"), "release"))).toBe(false);
  const page = await bob.another();
  await page.goto("changed.ipynb");
  await page.run(1);
  await expect(prompt(page, 1)).toHaveText("[3]:");
  await expect(page.output(1)).toHaveText("3");
  await expect(page.output(0)).toHaveCount(0);
  await expect(prompt(page, 0)).toHaveText("[ ]:");
  await page.page.close();
});

test("two pages, and a connection that is lost", OLDEST, async ({ site, bob }) => {
  const first = await prints(bob, "two.ipynb", [LINES, BEHIND]);
  const second = await bob.another();
  await second.look("two.ipynb");
  await showsAll(second, 2);
  await first.page.evaluate(async () => {
    type Panel = { sessionContext: { session: { kernel: { reconnect(): Promise<void> } } } };
    const app = (window as unknown as { jupyterapp: { shell: { currentWidget: unknown } } }).jupyterapp;
    await (app.shell.currentWidget as Panel).sessionContext.session.kernel.reconnect();
  });
  await more(site);
  release(site, "bob");
  for (const page of [first, second]) {
    await expect(prompt(page, 0)).toHaveText("[1]:");
    await expect(prompt(page, 1)).toHaveText("[2]:");
    await showsAll(page, printed(site) - 1);
    await expect(page.output(1)).toHaveText(["behind True", "True"]);
    await page.page.close();
  }
});
