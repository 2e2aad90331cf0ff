/**
 * VS Code's own Jupyter extension on a dev cluster: a kernelspec of the user's, and a server by its URL.
 *
 * Not in CI: its parts come from GitHub and npm, and are built for minutes (`get.sh`). By hand, with any base and index:
 *
 *     tests/browser/vscode/get.sh
 *     cd tests/browser; HOP_BROWSER_INDEX=7 HOP_BROWSER_BASE=/srv/vscode node_modules/.bin/playwright test -c vscode.config.ts
 */
import { expect, test } from "@playwright/test";
import { KEEP, Site } from "../support/site";
import { Code, notebook, server, versions } from "./code";

const PYTHON = "/opt/gresshopper-dev/user/bin/python";

// A failure would take the cluster down between the two.
test.describe.configure({ mode: "serial" });

const LENT = `%%gpu 1
import glob, os
def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
paths = glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*")
print("lent:", *filter(opens, paths))`;
const SLEEPS = "import time; print('begun', flush=True); time.sleep(300)";
const HOLDS = "%%gpu 1\nimport time; print('held'); time.sleep(40)";

const site = new Site();

test.beforeAll(() => {
  test.setTimeout(600_000);
  site.mend();
  site.deploy("up");
  site.overlayUp();
  site.gpusAreThere();
  console.log(versions());
});

test.afterEach(() => Code.end(site));

test.afterAll(() => (KEEP ? undefined : site.down()));

/** Files of the user's kernels. A server's notebooks leave their variables there. */
function files(): string {
  return site.as("alice", "find", ".local/share/gresshopper", "-path", "*/kernels/*", "-o", "-path", "*/states/*");
}

/** No kernel of the user's runs, and there are these files. */
async function nothingIsLeft(but: string): Promise<void> {
  await expect(() => {
    expect(site.fronts()).toEqual([]);
    expect(site.as("root", "squeue", "-h", "-s", "-u", "alice", "-o", "%j")).not.toContain("kernel-");
    expect(files()).toBe(but);
  }).toPass({ timeout: 90_000 });
}

test("a kernelspec of this host", async ({ browser }) => {
  const spec = ["hop", "kernelspec", "install", "--user", "--name", "mine", "--display-name", "GPU on demand"];
  site.as("alice", ...spec, "--python", PYTHON);
  site.as("alice", "mkdir", "-p", ".local/share/gresshopper");
  const before = files();
  const code = await Code.open(site, browser, "alice", {
    "first.ipynb": notebook("1+1", LENT, SLEEPS, HOLDS),
    "second.ipynb": notebook("x = 41", "%%gpu 1\nprint(x + 1)"),
  });
  await code.show("first.ipynb");
  await code.choose("Jupyter Kernel...", "GPU on demand");
  await code.press("1+1");
  await code.reads(/^2$/m);
  await code.press("lent:");
  await code.reads(/^lent: \/dev\/fakegpu-\S+$/m);
  await code.press("begun");
  await code.reads(/^begun$/m);
  await code.press("begun");
  await code.reads(/KeyboardInterrupt/);
  await code.restart();
  await code.press("held");
  await code.reads(/^held$/m);

  await code.show("second.ipynb");
  await code.choose("GPU on demand");
  await code.press("x = 41");
  await code.press("print(x + 1)");
  await code.reads(/Waiting for 1 GPU: next in the queue/);
  await code.page.mouse.move(0, 0);
  await code.page.screenshot({ path: "results/vscode.png", clip: { x: 0, y: 0, width: 1280, height: 360 } });
  expect(await code.reads(/^42$/m)).not.toMatch(/Waiting/);

  await code.page.close();
  await nothingIsLeft(before);
});

test("an existing server by its URL", async ({ browser }) => {
  const url = server(site, "alice");
  const code = await Code.open(site, browser, "alice", { "third.ipynb": notebook("%%gpu 1\nprint(6 * 7)") });
  await code.show("third.ipynb");
  await code.choose("Existing Jupyter Server...");
  await code.answer("URL", url);
  await code.answer("Display Name", "cluster");
  await code.pick("GPU on demand");
  await code.press("print(6 * 7)");
  await code.reads(/^42$/m);
});
