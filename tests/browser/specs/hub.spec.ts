/** JupyterHub with our spawner: people sign in, their servers start as jobs, and what goes wrong is said. */
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import * as path from "node:path";
import { test as base, expect } from "@playwright/test";
import { BASE, Hub, ofPage, signIn, TOKEN } from "../support/hub";
import { HOLD, KERNEL, notebook, Person, release } from "../support/lab";
import { LAB, OLDEST } from "../support/lanes";
import { ENVIRONMENT, type Host, HUB_UID, PEERS, PYTHON, REPO, Site } from "../support/site";

interface Given {
  readonly hub: Hub;
  readonly after: undefined;
}

const test = base.extend<Given>({
  // biome-ignore lint/correctness/noEmptyPattern: Playwright reads a fixture's needs from this pattern.
  hub: async ({}, use) => use(new Hub(new Site())),
  after: [
    async ({ hub }, use, info) => {
      await hub.user("carol");
      await use(undefined);
      hub.open(true);
      if (info.status !== info.expectedStatus) {
        await info.attach("jupyterhub.log", { body: hub.site.hubLog().slice(-20_000), contentType: "text/plain" });
      }
      await hub.quiet("carol");
      // What was chosen is remembered, but not from test to test.
      await hub.api("DELETE", "users/carol");
    },
    { auto: true },
  ],
});

// Each of them starts a Hub and servers, one after the other.
test.describe.configure({ timeout: 600_000 });

/** The Hub with these lines of configuration below the page's, for the tests of a group. */
function hubWith(extra: string): void {
  test.beforeAll(() => {
    const hub = new Hub(new Site());
    hub.site.startHub(BASE + extra);
  });
}

test.afterAll(() => new Site().startHub());

test.describe("as the page says", () => {
  hubWith("");

  test("sign in, wait, work, sign out", async ({ hub, browser }) => {
    hub.open(false);
    const page = await signIn(hub.site, browser, "carol");
    const progress = page.locator("#progress-message, #progress-log").first();
    await expect(progress).toContainText("waits: the partition is down", { timeout: 120_000 });
    hub.open(true);
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    await carol.open("first.ipynb", notebook(["%%gpu 1\nprint('with', 'a GPU')"]));
    await carol.run(0);
    await expect(carol.output(0)).toContainText("with a GPU", { timeout: 120_000 });
    const saved = await carol.saved("first.ipynb");
    expect(JSON.stringify(saved.cells)).toContain("with a GPU");
    await page.goto(`${hub.site.url}/hub/logout`);
    await page.goto(`${hub.site.url}/hub/home`);
    await expect(page.locator("#login_submit")).toBeVisible();
    await page.context().close();
  });

  test("two servers", OLDEST, async ({ hub }) => {
    // JupyterHub 6 takes no new name with a dot.
    const named = ENVIRONMENT === "hub5" ? "deep.dive" : "deep-dive";
    for (const name of ["", named]) {
      expect([201, 202]).toContain(await hub.start("carol", name));
    }
    await hub.ready("carol");
    await hub.ready("carol", named);
    expect(hub.jobs("carol").map((job) => job.state)).toEqual(["RUNNING", "RUNNING"]);
    await hub.stop("carol");
    await expect.poll(() => hub.jobs("carol").length, { timeout: 120_000 }).toBe(1);
    expect((await hub.server("carol", named))?.ready).toBe(true);
    await hub.stop("carol", named);
    await expect.poll(() => hub.server("carol", named), { timeout: 120_000 }).toBeUndefined();
    // While it waits, too.
    hub.open(false);
    await hub.start("carol", named);
    await expect.poll(() => hub.jobs("carol").map((job) => job.state)).toEqual(["PENDING"]);
    await hub.stop("carol", named);
    await expect.poll(() => hub.jobs("carol"), { timeout: 120_000 }).toEqual([]);
  });

  test("restart", OLDEST, async ({ hub }) => {
    await hub.start("carol");
    await hub.ready("carol");
    hub.open(false);
    await hub.start("carol", "later");
    await expect
      .poll(() =>
        hub
          .jobs("carol")
          .map((job) => job.state)
          .sort(),
      )
      .toEqual(["PENDING", "RUNNING"]);
    const before = hub.jobs("carol").map((job) => job.id);
    hub.site.stopHub("SIGKILL");
    hub.site.startHub(BASE);
    await hub.ready("carol");
    expect(hub.jobs("carol").map((job) => job.id)).toEqual(before);
    hub.open(true);
    await hub.ready("carol", "later");
    expect(hub.jobs("carol").map((job) => job.id)).toEqual(before);
    const answer = await fetch(`${hub.site.url}/user/carol/later/api`);
    expect(answer.status).toBe(200);
  });

  test("hop open", OLDEST, async ({ hub, browser }) => {
    const { site } = hub;
    site.write("carol", "work/a first.ipynb", notebook(["print('open' + 'ed')"]));
    const { json } = await hub.api("POST", "users/carol/tokens");
    const keep = "umask 077; mkdir -p ~/.config/gresshopper; echo $0 >~/.config/gresshopper/hub-token";
    const open = ["hop", "open", "--hub", site.url, "work/a first.ipynb"];
    // Without a token the page signs in, and the Hub starts the server.
    const { out, err } = site.try("carol", ...open);
    expect(err).toContain("there is no token");
    expect(out.trim()).toBe(`${site.url}/hub/user-redirect/lab/tree/work/a%20first.ipynb`);
    site.as("carol", "sh", "-c", keep, String(json.token));
    hub.open(false);
    const words = (name: string) => {
      const file = path.join(site.home("carol"), name);
      return fs.existsSync(file) ? fs.readFileSync(file, "utf8") : "";
    };
    const opens = site.background("carol", "sh", "-c", 'exec "$0" "$@" >opened 2>said', ...open);
    try {
      await expect.poll(() => words("said"), { timeout: 60_000 }).toContain("waits: the partition is down");
      expect(words("opened")).toBe("");
    } finally {
      hub.open(true);
    }
    await expect
      .poll(() => words("opened"), { timeout: 180_000 })
      .toContain("/user/carol/lab/tree/work/a%20first.ipynb");
    expect(opens.exitCode ?? 0).toBe(0);
    const page = await signIn(site, browser, "carol", new URL(words("opened").trim()).pathname);
    await page.locator(".jp-Notebook .jp-Cell").first().waitFor();
    const carol = Person.of(site, "carol", page);
    await carol.kernelIs("idle");
    await carol.run(0);
    await expect(carol.cell(0)).toContainText("opened");
    // A server that is there is asked for, and no more.
    expect(site.as("carol", ...open)).toBe(words("opened"));
    site.as("carol", "sh", "-c", keep, "forged");
    const refused = site.try("carol", ...open);
    expect([refused.status, refused.out]).toEqual([1, ""]);
    expect(refused.err).toContain("doesn't take the token (403 Forbidden): make a new one on its page");
    site.remove("carol", ".config/gresshopper/hub-token");
    await carol.endKernels();
    await page.context().close();
  });

  test("a server that ends is noticed", OLDEST, async ({ hub }) => {
    await hub.start("carol");
    await hub.ready("carol");
    const [job] = hub.jobs("carol");
    for (const pid of hub.site.servers()) {
      process.kill(pid, "SIGKILL");
    }
    await expect.poll(() => hub.field(job?.id ?? "", "Comment"), { timeout: 90_000 }).toBe("gresshopper");
    await expect.poll(() => hub.server("carol"), { timeout: 180_000 }).toBeUndefined();
    await expect.poll(() => hub.jobs("carol"), { timeout: 90_000 }).toEqual([]);
  });
});

test.describe("what is refused", () => {
  test("refused", LAB, async ({ hub, browser }) => {
    hub.site.startHub(`${BASE}c.GresshopperSpawner.account = "unheard-of"\n`);
    const begin = hub.site.hubLog().length;
    const page = await signIn(hub.site, browser, "carol");
    await expect(page.locator("body")).toContainText("Slurm did not take the server's job", { timeout: 90_000 });
    await expect(page.locator("body")).toContainText("Invalid account");
    // JupyterHub 5 knows no failure that isn't its own.
    if (ENVIRONMENT !== "hub5") {
      expect(hub.site.hubLog().slice(begin)).not.toContain("Traceback");
    }
    await page.context().close();
  });

  test("log", OLDEST, async ({ hub, browser }) => {
    const python = `${hub.site.overlay}/bin/python`;
    hub.site.startHub(`${BASE}c.GresshopperSpawner.cmd = ["${python}", "-c", "import no_such_module"]\n`);
    const page = await signIn(hub.site, browser, "carol");
    await expect(page.locator("body")).toContainText("before your server was up", { timeout: 120_000 });
    await expect(page.locator("body")).toContainText("No module named 'no_such_module'");
    const folder = `${hub.site.home("carol")}/.local/share/gresshopper/servers`;
    const logs = fs.readdirSync(folder).filter((name) => name.endsWith(".log"));
    expect(logs.length).toBeGreaterThan(0);
    for (const name of logs) {
      expect(fs.statSync(`${folder}/${name}`).mode & 0o777).toBe(0o600);
    }
    await page.context().close();
  });
});

test.describe("what is chosen", () => {
  hubWith(`
c.GresshopperSpawner.profile_list = [
    {"slug": "small", "display_name": "Small", "override": {"mem_mib": 700}},
    {"slug": "large", "display_name": "Large", "description": "For big tables", "default": True,
     "override": {"mem_mib": 900},
     "profile_options": {"size": {"display_name": "Cores", "choices": {
         "one": {"display_name": "1 core"},
         "two": {"display_name": "2 cores", "override": {"cpus": 2}}}}}},
    {"slug": "staff", "display_name": "For staff", "groups": ["staff"]},
]
c.GresshopperSpawner.form_fields = ["account", "mem_mib", "time_limit_min"]
`);

  test("rest", LAB, async ({ hub, browser }) => {
    expect([201, 202]).toContain(await hub.start("carol", "", { profile: "small" }));
    await hub.ready("carol");
    expect(hub.field(hub.jobs("carol")[0]?.id ?? "", "MinMemoryNode")).toBe("700M");
    await hub.quiet("carol");
    expect(await hub.start("carol", "", { profile: "staff" })).toBe(400);
    expect(hub.jobs("carol")).toEqual([]);
    const page = await signIn(hub.site, browser, "carol", "/hub/spawn?opt-profile=small");
    await page.waitForURL("**/user/carol/**", { timeout: 180_000 });
    expect(hub.field(hub.jobs("carol")[0]?.id ?? "", "MinMemoryNode")).toBe("700M");
    await hub.quiet("carol");
    const response = await page.goto(`${hub.site.url}/hub/spawn/carol?opt-profile=gone`);
    expect(response?.status()).toBe(400);
    await expect(page.locator("body")).toContainText("there is no profile 'gone' here");
    await page.context().close();
  });

  test("default", OLDEST, async ({ hub, browser }) => {
    const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
    await expect(page.locator("input[name=profile]:checked")).toHaveValue("large");
    await page.locator("#spawn_form [type=submit]").click();
    await page.waitForURL("**/user/carol/**", { timeout: 180_000 });
    const byForm = hub.jobs("carol").map((job) => hub.field(job.id, "MinMemoryNode"));
    await hub.quiet("carol");
    await hub.start("carol", "", {});
    await hub.ready("carol");
    expect(hub.jobs("carol").map((job) => hub.field(job.id, "MinMemoryNode"))).toEqual(byForm);
    await page.context().close();
  });

  test("form", async ({ hub, browser }) => {
    hub.site.try("root", "sacctmgr", "-i", "add", "account", "course", "Description=x", "Organization=x");
    hub.site.try("root", "sacctmgr", "-i", "add", "user", "carol", "account=course");
    // The form's answers are a minute old at most: a Hub that has just begun asks at once.
    hub.site.startHub(fs.readFileSync(`${hub.site.base}/hub/extra.py`, "utf8"));
    const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
    const account = page.locator("#field-account");
    await expect(account.locator("option")).toHaveText(["lab", "course"]);
    await account.selectOption("course");
    await page.locator("#profile-large--size").selectOption("two");
    await page.fill("#field-time_limit_min", "50");
    if (process.env.HOP_BROWSER_SHOTS) {
      await page.screenshot({ path: `${process.env.HOP_BROWSER_SHOTS}/form.png` });
    }
    await page.locator("#spawn_form [type=submit]").click();
    await page.waitForURL("**/user/carol/**", { timeout: 180_000 });
    const [job] = hub.jobs("carol");
    const chosen = ["Account", "TimeLimit", "NumCPUs", "MinMemoryNode"].map((name) => hub.field(job?.id ?? "", name));
    expect(chosen).toEqual(["course", "00:50:00", "2", "900M"]);
    // The kernel account, too: the seat and what it books.
    const carol = Person.of(hub.site, "carol", page);
    await carol.open("charged.ipynb", notebook(["%%gpu 1\nprint('who', 'pays')"]));
    await carol.run(0);
    await expect(carol.output(0)).toContainText("who pays", { timeout: 120_000 });
    const seats = hub.site.jobs("carol").filter(({ name }) => name === "kernels");
    expect(seats.map(({ id }) => hub.field(id, "Account"))).toContain("course");
    const booked = () => hub.site.hop("acct", "-a", "-X").filter((row) => row.user === "carol");
    await expect.poll(() => booked().map((row) => row.account)).toContain("course");
    await hub.quiet("carol");
    // Remembered, and not to be forged.
    await page.goto(`${hub.site.url}/hub/spawn`);
    await expect(account).toHaveValue("course");
    await expect(page.locator("#field-time_limit_min")).toHaveValue("50");
    await page.evaluate(() => {
      (document.querySelector("#field-account option") as HTMLOptionElement).value = "pool";
    });
    await account.selectOption("pool");
    await page.locator("#spawn_form [type=submit]").click();
    await expect(page.locator("body")).toContainText("account 'pool' isn't yours; yours are: lab, course");
    expect(hub.jobs("carol")).toEqual([]);
    expect(await hub.start("carol", "", { mem_mib: "99999999" })).toBe(400);
    // What the administrator has just allowed is no longer refused: Slurm is asked again.
    hub.site.try("root", "sacctmgr", "-i", "add", "account", "late", "Description=x", "Organization=x");
    hub.site.try("root", "sacctmgr", "-i", "add", "user", "carol", "account=late");
    await expect.poll(() => hub.start("carol", "", { account: "late" }), { timeout: 30_000 }).toBeLessThan(300);
    await page.context().close();
  });
});

test("announced", LAB, async ({ hub, browser }) => {
  // JupyterHub's own means: nothing of the spawn page takes it away.
  hub.site.startHub(`${BASE}
c.JupyterHub.template_vars = {"announcement_spawn": "Maintenance on Friday."}
c.GresshopperSpawner.form_fields = ["mem_mib"]
`);
  const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
  await expect(page.locator("body")).toContainText("Maintenance on Friday.");
  await expect(page.locator("#field-mem_mib")).toBeVisible();
  await page.context().close();
});

test("settings by group and by profile, and the server's own limits", LAB, async ({ hub }) => {
  hub.site.startHub(`${BASE}
c.Spawner.group_overrides = {
    "course": {"groups": ["course"], "spawner_override": {"time_limit_min": 47, "environment": {"COURSE": "yes"}}},
}
c.Spawner.environment = {"PYTHONPATH": ${JSON.stringify(PEERS)}}
c.Spawner.args = ["--ServerApp.jpserver_extensions=jupyter_resource_usage=True"]
c.GresshopperSpawner.profile_list = [
    {"slug": "small", "display_name": "Small", "override": {
        "mem_mib": 700, "gres": "gpu:1", "default_url": "/tree/of-mine", "notebook_dir": "~/work",
        "environment": {"PROFILE": "small"}}},
]
`);
  hub.site.write("carol", "work/of-mine", "");
  await hub.api("POST", "groups/course");
  await hub.api("POST", "groups/course/users", { users: ["carol"] });
  await hub.start("carol", "", { profile: "small" });
  await hub.ready("carol");
  const [job] = hub.jobs("carol");
  const asked = ["TimeLimit", "MinMemoryNode", "TresPerNode", "TRES"].map((name) => hub.field(job?.id ?? "", name));
  expect(asked.slice(0, 3)).toEqual(["00:47:00", "700M", "gres:gpu:1"]);
  expect(asked[3], "a device for the whole session").toContain("gres/gpu=1");
  const [pid] = hub.site.servers();
  const env = fs.readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
  expect(env).toEqual(expect.arrayContaining(["COURSE=yes", "PROFILE=small", `PYTHONPATH=${PEERS}`]));
  const { json } = await hub.api("POST", "users/carol/tokens");
  const get = async (place: string) => {
    const headers = { Authorization: `token ${json.token}` };
    return fetch(`${hub.site.url}/user/carol/${place}`, { headers, redirect: "manual" });
  };
  expect((await get("")).headers.get("location")).toContain("/user/carol/tree/of-mine");
  const there: { content: { name: string }[] } = await (await get("api/contents")).json();
  expect(there.content.map(({ name }) => name)).toEqual(["of-mine"]);
  const usage: { limits: { memory: { rss: number } } } = await (await get("api/metrics/v1")).json();
  expect(usage.limits.memory.rss).toBe(700 * 2 ** 20);
  await hub.quiet("carol");
  await hub.api("DELETE", "groups/course/users", { users: ["carol"] });
  await hub.start("carol", "", { profile: "small" });
  await expect.poll(() => hub.jobs("carol").length).toBe(1);
  expect(hub.field(hub.jobs("carol")[0]?.id ?? "", "TimeLimit")).not.toBe("00:47:00");
});

test("availability", LAB, async ({ hub, browser }) => {
  hub.site.startHub(`${BASE}c.GresshopperSpawner.form_fields = ["mem_mib"]\nc.GresshopperSpawner.form_age_s = 0\n`);
  const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
  const idle = () => {
    const states = hub.site.as("root", "sinfo", "-h", "-N", "-o", "%N %T").split("\n");
    return states.filter((line) => line.endsWith(" idle")).map((line) => line.split(" ")[0]);
  };
  // Jobs of other tests may end meanwhile, and Slurm takes a moment to clean up behind them.
  const agrees = () =>
    expect(async () => {
      const slurms = idle().length;
      await page.goto(`${hub.site.url}/hub/spawn`);
      await expect(page.locator("body")).toContainText(`${slurms} of 2 nodes of partition`, { timeout: 2_000 });
    }).toPass({ timeout: 180_000 });
  await agrees();
  const [node] = idle();
  if (node !== undefined) {
    hub.site.as("root", "scontrol", "update", `NodeName=${node}`, "State=DRAIN", "Reason=test");
    try {
      await agrees();
    } finally {
      hub.site.as("root", "scontrol", "update", `NodeName=${node}`, "State=RESUME");
    }
  }
  await expect(page.locator("body")).toContainText("GPUs that are free for cells now: 1 of 1");
  await expect(page.locator("body")).toContainText("The server needs no GPU");
  await page.context().close();
});

test("a spawner around ours", LAB, async ({ hub, browser }) => {
  const [settings] = ofPage(hub.site, "Beside other spawners") as [string];
  // The servers of this machine listen on its loopback alone.
  const here = settings
    .replace("0.0.0.0", "127.0.0.1")
    .replace('"JUPYTER_PATH"]', '"JUPYTER_PATH", "MUNGE_SOCKET", "GRESSHOPPER_PREFIX"]');
  const config = `${BASE}
import sys
sys.path.append(${JSON.stringify(PEERS)})
c.ProfilesSpawner.cmd = c.GresshopperSpawner.cmd
${here}`;
  hub.site.startHub(config);
  const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
  await page.locator("select[name=profile]").selectOption("job");
  await page.locator("#spawn_form [type=submit]").click();
  const carol = Person.of(hub.site, "carol", page);
  await carol.serverIsUp();
  const before = hub.jobs("carol").map((job) => job.id);
  expect(before.length).toBe(1);
  hub.site.stopHub("SIGKILL");
  hub.site.startHub(config);
  await hub.ready("carol");
  expect(hub.jobs("carol").map((job) => job.id)).toEqual(before);
  await carol.open("around.ipynb", notebook(["%%gpu 1\nprint('with', 'a GPU')"]));
  await carol.run(0);
  await expect(carol.cell(0)).toContainText("with a GPU", { timeout: 120_000 });
  await carol.endKernels();
  await hub.stop("carol");
  await expect.poll(() => hub.jobs("carol"), { timeout: 120_000 }).toEqual([]);
  await page.context().close();
});

test("slurmdbd away", OLDEST, async ({ hub, browser }) => {
  hub.site.startHub(`${BASE}
c.GresshopperSpawner.form_fields = ["account", "mem_mib"]
c.GresshopperSpawner.form_age_s = 0
`);
  const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
  const accounts = page.locator("#field-account option");
  const said = "Slurm's accounting doesn't answer: accounts and QOS are the last that are known.";
  await expect(accounts.first()).toHaveText("lab");
  await expect(page.locator("body")).not.toContainText(said);
  const known = await accounts.allTextContents();
  for (const pid of hub.site.pids("slurmdbd")) {
    process.kill(pid, "SIGKILL");
  }
  try {
    await page.goto(`${hub.site.url}/hub/spawn`);
    await expect(page.locator("body")).toContainText(said);
    await expect(accounts).toHaveText(known);
    // What is chosen is checked against what is known, and slurmctld takes the job.
    expect(await hub.start("carol", "", { account: "pool" })).toBe(400);
    await page.locator("#field-account").selectOption("lab");
    await page.locator("#spawn_form [type=submit]").click();
    await page.waitForURL("**/user/carol/**", { timeout: 180_000 });
    expect(hub.jobs("carol").map((job) => hub.field(job.id, "Account"))).toEqual(["lab"]);
  } finally {
    hub.site.mend();
  }
  await hub.quiet("carol");
  await page.goto(`${hub.site.url}/hub/spawn`);
  await expect(accounts).toHaveText(known);
  await expect(page.locator("body")).not.toContainText(said);
  await page.context().close();
});

test("by a server's URL, as VS Code's JupyterHub extension does", LAB, async ({ hub }) => {
  hub.site.startHub(BASE);
  const program = path.join(REPO, "tests/browser/support/by_url.py");
  const argv = [program, hub.site.url, "carol", hub.site.password("carol"), KERNEL];
  const out = execFileSync(PYTHON, argv, { encoding: "utf8", timeout: 240_000 });
  const told: { leased: [string, string]; interrupted: [string, string]; kernels: number } = JSON.parse(
    out.trim().split("\n").at(-1) as string,
  );
  expect(told.leased).toEqual(["ok", "with a GPU\n"]);
  expect(told.interrupted).toEqual(["error", "begun\n"]);
  expect(told.kernels).toBe(0);
});

test("kernel account", OLDEST, async ({ hub, browser }) => {
  hub.site.try("root", "sacctmgr", "-i", "add", "account", "course", "Description=x", "Organization=x");
  hub.site.try("root", "sacctmgr", "-i", "add", "user", "carol", "account=course");
  hub.site.as("carol", "hop", "kernelspec", "install", "--user", "--account", "course", "--name", "course");
  hub.site.startHub(BASE);
  const page = await signIn(hub.site, browser, "carol");
  const carol = Person.of(hub.site, "carol", page);
  await carol.serverIsUp();
  const accounts = { "of-lab.ipynb": "lab", "of-course.ipynb": "course" };
  for (const [name, account] of Object.entries(accounts)) {
    await carol.open(name, notebook(["%%gpu 1\nprint('who', 'pays')"], account === "lab" ? KERNEL : account));
    await carol.run(0);
    await expect(carol.output(0)).toContainText("who pays", { timeout: 120_000 });
  }
  // Each kernel has a seat of its own account, and its lease is booked there.
  const seats = hub.site.jobs("carol").filter(({ name }) => name === "kernels");
  expect(seats.map(({ id }) => hub.field(id, "Account"))).toEqual(expect.arrayContaining(["course", "lab"]));
  const booked = () => {
    const rows = hub.site.hop("acct", "-a", "-X").filter((row) => String(row.name) in accounts);
    return Object.fromEntries(rows.map((row) => [row.name, row.account]));
  };
  await expect.poll(booked).toEqual(accounts);
  await carol.endKernels();
  await page.context().close();
});

test("QOS and reservation", OLDEST, async ({ hub, browser }) => {
  hub.site.try("root", "sacctmgr", "-i", "add", "qos", "quick");
  hub.site.try("root", "sacctmgr", "-i", "modify", "user", "carol", "set", "qos+=quick");
  hub.site.as("carol", "hop", "kernelspec", "install", "--user", "--qos", "quick", "--name", "quick");
  // The node of the pilot, whose cores are taken, is no use.
  const nodes = hub.site.as("root", "sinfo", "-h", "-N", "-o", "%N").trim().split("\n");
  const node = nodes.find((name) => name !== hub.site.gpusAreThere());
  const reserved = ["Users=carol", "StartTime=now", "Duration=30", `Nodes=${node}`, "Flags=IGNORE_JOBS"];
  hub.site.as("root", "scontrol", "create", "reservation", "ReservationName=class", ...reserved);
  try {
    hub.site.startHub(`${BASE}c.GresshopperSpawner.form_fields = ["qos", "reservation"]\n`);
    const page = await signIn(hub.site, browser, "carol", "/hub/spawn");
    await page.locator("#field-qos").selectOption("quick");
    await page.locator("#field-reservation").selectOption("class");
    await page.locator("#spawn_form [type=submit]").click();
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    const [job] = hub.jobs("carol");
    expect(["QOS", "Reservation"].map((name) => hub.field(job?.id ?? "", name))).toEqual(["quick", "class"]);
    for (const [name, kernel] of Object.entries({ "usual.ipynb": KERNEL, "quick.ipynb": "quick" })) {
      await carol.open(name, notebook(["%%gpu 1\nprint('in', 'time')"], kernel));
      await carol.run(0);
      await expect(carol.output(0)).toContainText("in time", { timeout: 120_000 });
    }
    const seats = hub.site.jobs("carol").filter(({ name }) => name === "kernels");
    expect(seats.map(({ id }) => hub.field(id, "QOS"))).toEqual(expect.arrayContaining(["normal", "quick"]));
    await carol.endKernels();
    await page.context().close();
  } finally {
    await hub.quiet("carol");
    hub.site.as("root", "scontrol", "delete", "ReservationName=class");
  }
});

test("walltime", LAB, async ({ hub, browser }) => {
  hub.site.startHub(`${BASE}c.GresshopperSpawner.time_limit_min = 5\n`);
  const page = await signIn(hub.site, browser, "carol");
  const carol = Person.of(hub.site, "carol", page);
  await carol.serverIsUp();
  await carol.open("long.ipynb", notebook(["1"]));
  const said = page.getByText(/Slurm ends this server at .*\d:\d\d.*\. Save your notebooks\./).first();
  await expect(said).toBeVisible({ timeout: 180_000 });
  await carol.shot("walltime");
  // Slurm lets operators alone give more time: its refusal is there to read, with what helps.
  const notice = page.locator(".Toastify__toast", { hasText: "Slurm ends this server" });
  const [job] = hub.jobs("carol");
  await notice.getByRole("button", { name: "More time" }).click();
  const refused = page.getByRole("dialog");
  await expect(refused).toContainText("Slurm gives this server no more time");
  await expect(refused).toContainText("denied");
  await expect(refused).toContainText("go on there with their variables.");
  await expect(refused.getByRole("button", { name: "The Hub’s page" })).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(refused).toHaveCount(0);
  expect(hub.field(job?.id ?? "", "TimeLimit")).toBe("00:05:00");
  await carol.look("long.ipynb");
  await expect(said).toBeVisible();
  hub.site.as("root", "sacctmgr", "-i", "modify", "user", "carol", "set", "adminlevel=Operator");
  try {
    const asked = () => carol.rest("POST", "gresshopper/api/v1/server/more-time");
    await expect.poll(async () => (await asked()).status(), { timeout: 60_000 }).toBe(200);
    expect(hub.field(job?.id ?? "", "TimeLimit")).toMatch(/^01:05:00$/);
    // The page asks each minute: a notice of an end that has moved goes.
    await expect(said).toHaveCount(0, { timeout: 120_000 });
  } finally {
    hub.site.as("root", "sacctmgr", "-i", "modify", "user", "carol", "set", "adminlevel=None");
  }
  await page.context().close();
});

test.describe("a kernel that outlives its server", () => {
  hubWith("c.Spawner.poll_interval = 5\n");

  const CELLS = [
    "x = 40",
    "import time\nprint('be' + 'gun', flush=True)\ntime.sleep(3)\nx += 1\nprint('x', 'is', x)",
    "print('now', x)",
    "%%gpu 1\n1",
  ];

  /** Carol sets a variable, and another cell runs. */
  async function begin(carol: Person, name: string): Promise<void> {
    await carol.open(name, notebook(CELLS));
    await carol.run(0);
    await carol.hasRun(0);
    await carol.run(1);
    await expect(carol.cell(1)).toContainText("begun");
  }

  /** The notebook is opened again, and goes on with its variables and its count. */
  async function goesOn(carol: Person, name: string): Promise<void> {
    await carol.serverIsUp();
    await carol.goto(name);
    await carol.run(2);
    await expect(carol.cell(2)).toContainText("was saved, and is back");
    await expect(carol.cell(2)).toContainText("now 41");
    await expect(carol.cell(2).locator(".jp-InputPrompt")).toHaveText("[3]:");
  }

  /** What the cell showed meanwhile is shown by the next one. */
  async function shows(carol: Person): Promise<void> {
    await expect(carol.cell(2)).toContainText("ran on without a server");
    await expect(carol.cell(2)).toContainText("x is 41");
  }

  /** Jupyter has a new id for the kernel: the details still explain a wait, and the panel interrupts and ends the kernel. */
  async function isWithinReach(carol: Person, name: string): Promise<void> {
    const holder = await carol.another();
    await holder.open("holder.ipynb", notebook([HOLD]));
    await holder.run(0);
    await expect(holder.badge).toHaveText(/GPU \d/);
    await carol.run(3);
    await expect(carol.waitLine(3)).toBeVisible();
    await carol.badge.click();
    await expect(carol.page.locator(".gh-Details")).toContainText("next in line");
    await carol.page.keyboard.press("Escape");
    await carol.page.getByRole("tab", { name: "Kernels and GPUs" }).click();
    const row = carol.page.locator(".gh-Kernel", { hasText: name });
    await row.getByRole("button", { name: "Interrupt" }).click();
    await expect(carol.output(3)).toContainText("KeyboardInterrupt");
    await row.getByRole("button", { name: "End" }).click();
    await carol.page.getByRole("dialog").getByRole("button", { name: "End" }).click();
    await expect(row).toHaveCount(0);
    await holder.page.close();
  }

  test("reopen", OLDEST, async ({ hub, browser }) => {
    const page = await signIn(hub.site, browser, "carol");
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    // The kernel of a try that failed is kept under its notebook's name.
    const name = `reopened-${test.info().retry}.ipynb`;
    await begin(carol, name);
    await page.goto(`${hub.site.url}/hub/home`);
    // The Hub's page gives the button its meaning only once its scripts are there: a click before that does nothing.
    const isUp = async () => (await hub.server("carol"))?.ready ?? false;
    await expect(async () => {
      if (await isUp()) await page.locator("#stop").click({ timeout: 5_000 });
      await expect.poll(isUp).toBe(false);
    }).toPass({ timeout: 120_000 });
    await expect.poll(() => hub.server("carol"), { timeout: 120_000 }).toBeUndefined();
    await expect.poll(() => hub.jobs("carol"), { timeout: 120_000 }).toEqual([]);
    await page.goto(`${hub.site.url}/hub/home`);
    await page.locator("#start").click();
    await goesOn(carol, name);
    await shows(carol);
    await carol.shot("reopened");
    await carol.endKernels();
    await page.context().close();
  });

  test("server job cancelled", LAB, async ({ hub, browser }) => {
    const page = await signIn(hub.site, browser, "carol");
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    // The kernel of a try that failed is kept under its notebook's name.
    const name = `cancelled-${test.info().retry}.ipynb`;
    await begin(carol, name);
    hub.site.as("root", "scancel", ...hub.jobs("carol").map((job) => job.id));
    await expect.poll(() => hub.server("carol"), { timeout: 120_000 }).toBeUndefined();
    await page.goto(`${hub.site.url}/hub/spawn`);
    await goesOn(carol, name);
    await shows(carol);
    await isWithinReach(carol, name);
    await carol.endKernels();
    await page.context().close();
  });
});

test.describe("a server whose node is lost", () => {
  hubWith("c.Spawner.poll_interval = 5\nc.GresshopperSpawner.lost_node_s = 10\n");

  test("node of the server lost", LAB, async ({ hub, browser }) => {
    const page = await signIn(hub.site, browser, "carol");
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    // The kernel of a try that failed is kept under its notebook's name.
    const name = `lost-${test.info().retry}.ipynb`;
    await carol.open(name, notebook(["x = 41", "print('now', x)"]));
    await carol.run(0);
    await carol.hasRun(0);
    const [job] = hub.jobs("carol");
    const node = hub.field(job?.id ?? "", "NodeList");
    hub.site.devcluster("lose-node", node);
    try {
      // Slurm itself takes the job for running as long as SlurmdTimeout, which is five minutes.
      await expect.poll(() => hub.server("carol"), { timeout: 200_000 }).toBeUndefined();
      await page.goto(`${hub.site.url}/hub/spawn`);
      await carol.serverIsUp();
      expect(hub.field(hub.jobs("carol").at(-1)?.id ?? "", "NodeList")).not.toBe(node);
      await carol.goto(name);
      await carol.run(1);
      await expect(carol.cell(1)).toContainText("now 41");
      await expect(carol.cell(1).locator(".jp-InputPrompt")).toHaveText("[2]:");
    } finally {
      hub.site.bringBack(node);
    }
    await carol.endKernels();
    await page.context().close();
  });
});

test.describe("a server that is left alone", () => {
  // Servers tell the Hub each few seconds whether they are used.
  hubWith(`c.GresshopperSpawner.environment = {"JUPYTERHUB_ACTIVITY_INTERVAL": "5"}\n`);

  test("culled", OLDEST, async ({ hub, browser }) => {
    const page = await signIn(hub.site, browser, "carol");
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    await carol.open("runs.ipynb", notebook([HOLD]));
    await carol.run(0);
    await expect.poll(() => hub.site.hop("queue", "-a").map((row) => row.state)).toEqual(["RUNNING"]);
    await carol.open("waits.ipynb", notebook(["%%gpu 1\nprint('had', 'it')"]));
    await carol.run(0);
    await expect(carol.waitLine(0)).toBeVisible();
    await page.context().close();
    const limit = 30;
    const culler = hub.site.background(
      "bob",
      "env",
      `JUPYTERHUB_API_TOKEN=${TOKEN}`,
      "/opt/gresshopper-dev/kernels/bin/python",
      "-m",
      "jupyterhub_idle_culler",
      `--url=${hub.site.url}/hub/api`,
      `--timeout=${limit}`,
      "--cull-every=5",
    );
    try {
      // Nobody is there, and both cells are silent: three times as long as an idle server lives.
      await new Promise((resolve) => setTimeout(resolve, 3 * limit * 1000));
      expect((await hub.server("carol"))?.ready).toBe(true);
      release(hub.site, "carol");
      await expect.poll(() => hub.server("carol"), { timeout: 180_000 }).toBeUndefined();
      await expect.poll(() => hub.jobs("carol"), { timeout: 120_000 }).toEqual([]);
    } finally {
      culler.kill("SIGKILL");
    }
  });
});

test.describe("what the job does around the server", () => {
  hubWith(`
c.GresshopperSpawner.login_shell = True
c.GresshopperSpawner.prologue = "module load greeting"
c.GresshopperSpawner.epilogue = "module unload greeting"
c.GresshopperSpawner.job_name = "notebooks of the lab"
`);

  test("prologue and epilogue, job name of the site's own", LAB, async ({ hub }) => {
    // What a site's profile has for all users: the function `module`, here without its table of modules.
    hub.site.write(
      "carol",
      ".bash_profile",
      'module() { [ "$1" = load ] && export GREETING=hello; echo "$1 $2" >>"$HOME/modules"; }\n',
    );
    hub.site.write("carol", "modules", "");
    await hub.start("carol");
    await hub.ready("carol");
    const named = () => hub.site.as("root", "squeue", "-h", "-u", "carol", "-n", "notebooks of the lab", "-o", "%T");
    expect(named()).toBe("RUNNING\n");
    const [pid] = hub.site.servers();
    expect(fs.readFileSync(`/proc/${pid}/environ`, "utf8").split("\0")).toContain("GREETING=hello");
    // The server's own end: of a job that is cancelled, Slurm kills what is left after KillWait.
    process.kill(pid as number, "SIGTERM");
    await expect.poll(() => hub.server("carol"), { timeout: 180_000 }).toBeUndefined();
    const modules = () => fs.readFileSync(`${hub.site.home("carol")}/modules`, "utf8");
    await expect.poll(modules, { timeout: 120_000 }).toBe("load greeting\nunload greeting\n");
    await expect.poll(named, { timeout: 120_000 }).toBe("");
    fs.rmSync(`${hub.site.home("carol")}/.bash_profile`);
  });
});

test.describe("a Hub that isn't root, on a site that hides jobs", () => {
  const HIDDEN = "PrivateData=jobs";

  /** hopd has to see its users' seats. */
  const serviceIs = (site: Site, level: string) =>
    site.as("root", "sacctmgr", "-i", "modify", "user", "gresshopper", "set", `adminlevel=${level}`);

  test.afterAll(() => {
    const site = new Site();
    site.slurmConf(HIDDEN, false);
    serviceIs(site, "None");
  });

  test("PrivateData=jobs", LAB, async ({ hub, browser }) => {
    const [sudoers, settings] = ofPage(hub.site, "A Hub that isn't root") as [string, string];
    // As an administrator who has the page alone: the Hub's account, the group of its users, sudo.
    const host: Host = {
      account: { name: "jupyterhub", groups: ["shadow"] },
      etc: (etc) => {
        fs.appendFileSync(path.join(etc, "group"), `notebooks:x:${HUB_UID + 1}:alice,carol\n`);
        const file = path.join(etc, "sudoers.d/jupyterhub");
        fs.writeFileSync(file, sudoers);
        fs.chmodSync(file, 0o440);
      },
    };
    hub.site.slurmConf(HIDDEN, true);
    serviceIs(hub.site, "Operator");
    hub.site.startHub(BASE + settings, host);
    hub.open(false);
    const page = await signIn(hub.site, browser, "carol");
    const progress = page.locator("#progress-message, #progress-log").first();
    await expect(progress).toContainText("waits: the partition is down", { timeout: 120_000 });
    const before = hub.jobs("carol");
    expect(before.map((job) => job.state)).toEqual(["PENDING"]);
    const seen = [
      "setpriv",
      `--reuid=${HUB_UID}`,
      `--regid=${HUB_UID}`,
      "--clear-groups",
      "squeue",
      "-h",
      "-o",
      "%u",
    ];
    expect(hub.site.as("root", ...seen), "the Hub's account sees nobody's jobs").toBe("");
    // The Hub finds the job that waits, and later the one that runs.
    hub.site.stopHub("SIGKILL");
    hub.site.startHub(BASE + settings, host);
    hub.open(true);
    await hub.ready("carol");
    hub.site.stopHub("SIGKILL");
    hub.site.startHub(BASE + settings, host);
    await hub.ready("carol");
    expect(hub.jobs("carol").map((job) => job.id)).toEqual(before.map((job) => job.id));
    const again = await signIn(hub.site, browser, "carol");
    const carol = Person.of(hub.site, "carol", again);
    await carol.serverIsUp();
    await carol.open("hidden.ipynb", notebook(["%%gpu 1\nprint('with', 'a GPU')"]));
    await carol.run(0);
    await expect(carol.cell(0)).toContainText("with a GPU", { timeout: 120_000 });
    await carol.endKernels();
    await hub.stop("carol");
    await expect.poll(() => hub.server("carol"), { timeout: 120_000 }).toBeUndefined();
    await expect.poll(() => hub.jobs("carol"), { timeout: 120_000 }).toEqual([]);
    // One that ends by itself is noticed, too; and whoever isn't in the group is refused in a sentence.
    await hub.start("carol");
    await hub.ready("carol");
    for (const pid of hub.site.servers()) {
      process.kill(pid, "SIGKILL");
    }
    await expect.poll(() => hub.server("carol"), { timeout: 180_000 }).toBeUndefined();
    await expect.poll(() => hub.jobs("carol"), { timeout: 90_000 }).toEqual([]);
    const bobs = await signIn(hub.site, browser, "bob");
    await expect(bobs.locator("body")).toContainText("Slurm did not take the server's job", { timeout: 90_000 });
    await expect(bobs.locator("body")).toContainText("a password is required");
    for (const one of [page, again, bobs]) {
      await one.context().close();
    }
  });
});

test("user whom the Hub's host doesn't know", LAB, async ({ hub }) => {
  const home = `HOME=${path.dirname(hub.site.home("carol"))}/{username}`;
  // For ssh to a host that knows: this machine as it is, seen from the Hub's, which has no carol.
  const prefix = ["nsenter", `--mount=/proc/${process.pid}/ns/mnt`, "runuser", "-u", "{username}", "--", "env", home];
  const settings = `${BASE}
c.JupyterHub.authenticator_class = "dummy"
c.GresshopperSpawner.exec_prefix = ${JSON.stringify(prefix)}
`;
  const host: Host = {
    etc: (etc) => {
      for (const name of ["passwd", "group", "shadow"]) {
        const file = path.join(etc, name);
        fs.writeFileSync(file, fs.readFileSync(file, "utf8").replace(/^carol:.*\n/gm, ""));
      }
    },
  };
  hub.site.startHub(settings, host);
  await hub.user("carol");
  await hub.start("carol");
  await hub.ready("carol");
  const before = hub.jobs("carol").map((job) => job.id);
  hub.site.stopHub("SIGKILL");
  hub.site.startHub(settings, host);
  await hub.ready("carol");
  expect(hub.jobs("carol").map((job) => job.id)).toEqual(before);
  expect((await fetch(`${hub.site.url}/user/carol/api`)).status).toBe(200);
  await hub.stop("carol");
  await expect.poll(() => hub.jobs("carol"), { timeout: 120_000 }).toEqual([]);
});

/** Takes ports of a range for a moment, one after the other, and answers as if it were the server that is asked for. */
const SQUATTER = `
import random, socket, sys, time
first, last = int(sys.argv[1]), int(sys.argv[2])
while True:
    try:
        s = socket.create_server(("127.0.0.1", random.randint(first, last)))
    except OSError:
        time.sleep(0.002)
        continue
    s.settimeout(0.2)
    try:
        c, _ = s.accept()
        c.recv(65536)
        c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 12\\r\\nConnection: close\\r\\n\\r\\nbob was here")
        c.close()
    except OSError:
        pass
    s.close()
`;

/** Looks for ports of a range on which somebody else begins to listen, and takes them on IPv6; tells of each how it went. */
const NEIGHBOUR = `
import os, socket, sys, time
first, last = int(sys.argv[1]), int(sys.argv[2])
held = {}
while True:
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        fields = line.split()
        port = int(fields[1].rsplit(":", 1)[1], 16)
        if fields[3] != "0A" or not first <= port <= last or port in held or int(fields[7]) == os.getuid():
            continue
        held[port] = []
        for address in ("::1", "::"):
            try:
                held[port].append(socket.create_server((address, port), family=socket.AF_INET6))
                how = "taken"
            except OSError as error:
                how = error.strerror
            with open("ports", "a") as file:
                print(port, address, how, file=file)
    time.sleep(0.002)
`;

test.describe("nobody else at the door", () => {
  test("squatter, in a range of ports", LAB, async ({ hub }) => {
    const [first, last] = hub.site.freePorts();
    hub.site.startHub(`${BASE}c.GresshopperSpawner.port_range = [${first}, ${last}]\n`);
    hub.site.remove("bob", "ports");
    const bobs = [SQUATTER, NEIGHBOUR].map((text) =>
      hub.site.background("bob", "/usr/bin/python3", "-c", text, String(first), String(last)),
    );
    const heard: string[] = [];
    let over = false;
    const asked = (async () => {
      while (!over) {
        const answer = await fetch(`${hub.site.url}/user/carol/api`, { redirect: "manual" }).catch(() => undefined);
        const text = (await answer?.text().catch(() => "")) ?? "";
        heard.push(text.includes("bob was here") ? "bob" : String(answer?.status));
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    })();
    try {
      await hub.start("carol");
      await hub.ready("carol");
      const port = Number(/\d+/.exec(hub.port("carol"))?.[0]);
      expect(port).toBeGreaterThanOrEqual(first);
      expect(port).toBeLessThanOrEqual(last);
      await expect.poll(() => heard.at(-1), { timeout: 90_000 }).toBe("200");
      const ports = () => hub.site.try("bob", "cat", `${hub.site.home("bob")}/ports`).out;
      await expect.poll(ports).toContain(`${port} :: `);
      for (const pid of hub.site.servers()) {
        process.kill(pid, "SIGKILL");
      }
      await expect.poll(() => hub.server("carol"), { timeout: 180_000 }).toBeUndefined();
      expect(ports()).not.toMatch(new RegExp(`^${port} .*taken`, "m"));
    } finally {
      over = true;
      await asked;
      for (const bob of bobs) {
        bob.kill("SIGKILL");
      }
    }
    expect(heard).not.toContain("bob");
  });

  test("ssl", OLDEST, async ({ hub, browser }) => {
    const [, , api, proxy] = hub.site.ports();
    hub.site.startHub(`${BASE}
c.JupyterHub.internal_ssl = True
c.JupyterHub.internal_certs_location = f"{base}/hub/certificates"
c.JupyterHub.hub_bind_url = "https://127.0.0.1:${api}"
c.ConfigurableHTTPProxy.api_url = "https://127.0.0.1:${proxy}"
`);
    const page = await signIn(hub.site, browser, "carol");
    const carol = Person.of(hub.site, "carol", page);
    await carol.serverIsUp();
    await carol.open("secure.ipynb", notebook(["%%gpu 1\nprint('in', 'private')"]));
    await carol.run(0);
    await expect(carol.output(0)).toContainText("in private", { timeout: 120_000 });
    await page.context().close();
    // The server's own certificate is of this authority, and who has none is not answered.
    const port = /\d+/.exec(hub.port("carol"))?.[0];
    const authority = `${hub.site.base}/hub/certificates/notebooks-ca/notebooks-ca.crt`;
    const certificate = hub.site.try(
      "root",
      "sh",
      "-c",
      `openssl s_client -verify_return_error -CAfile ${authority} -connect 127.0.0.1:${port} </dev/null 2>&1`,
    );
    expect(certificate.out).toContain("Verify return code: 0 (ok)");
    const neighbour = hub.site.try("bob", "curl", "-sSk", `https://127.0.0.1:${port}/user/carol/api`);
    expect(neighbour.status).not.toBe(0);
    expect(neighbour.out).toBe("");
  });
});
