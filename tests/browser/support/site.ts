/**
 * The site that the tests visit: a dev cluster with Gresshopper deployed, and JupyterHub from the configuration that
 * `docs/jupyterhub.md` shows. Brought up once for a run (`setup.ts`), and found again by its file in each test.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import * as fs from "node:fs";
import * as path from "node:path";

export const REPO = path.resolve(__dirname, "../../..");
const DEV = "/opt/gresshopper-dev";
const PROFILE = process.env.PROFILE ?? "debug";
const TARGET = path.join(process.env.CARGO_TARGET_DIR ?? path.join(REPO, "target"), PROFILE);
const BASE = process.env.HOP_BROWSER_BASE ?? "/srv/gresshopper-browser";
const INDEX = process.env.HOP_BROWSER_INDEX ?? "14";
/** The environment below JupyterHub: `hub` (the newest) or `hub5` (the oldest that is tested, with Notebook 7). */
export const ENVIRONMENT = process.env.HOP_BROWSER_ENV ?? "hub";
/** Leaves the site up after the run, and finds it up before the next one. */
export const KEEP = process.env.HOP_BROWSER_KEEP === "1";

/** A Python that has clients of Jupyter's, and a folder of packages beside which ours is tried. */
export const PYTHON = path.join(DEV, "hub/bin/python");
export const PEERS = path.join(DEV, "peers");

/** Of the Hub's account, where it isn't root: above those of the cluster's users, and nobody's on this machine. */
export const HUB_UID = 61_120;

export type User = "alice" | "bob" | "carol";

/** How the Hub's host differs from this machine. */
export interface Host {
  /** The account that the Hub runs under, with a home and groups of its own; root unless named. */
  readonly account?: { readonly name: string; readonly groups: readonly string[] };
  /** Changes the host's `/etc`, which is a copy of this machine's. */
  readonly etc?: (folder: string) => void;
}

/** What a test needs to know of the site; kept in a file between processes. */
interface Facts {
  hubPid: number;
}

export class Site {
  readonly base = BASE;
  readonly overlay = path.join(BASE, "opt/hub");
  private firstPort: number | undefined;

  get url(): string {
    return `http://127.0.0.1:${this.ports()[1]}`;
  }

  /** Brings cluster, hopd and Hub up. */
  up(): void {
    this.mend();
    this.deploy("up");
    this.overlayUp();
    fs.mkdirSync(path.join(this.base, "hub"), { recursive: true, mode: 0o700 });
    this.gpusAreThere();
    this.startHub();
  }

  /** Starts what of the cluster doesn't run. */
  mend(): void {
    this.devcluster("up", "--index", INDEX, "--burst-nodes", "0", "--nodes", "2", "--bind", REPO);
  }

  /** The node whose GPU is lent, once it has one. */
  gpusAreThere(): string {
    const pilots = () => this.hop("info").filter((row) => row.state === "UP");
    this.poll("a pilot is up", 90, () => pilots().length > 0);
    return String(pilots()[0]?.node);
  }

  down(): void {
    this.stopHub();
    this.deploy("down", false);
    this.devcluster("down", "--purge");
  }

  isUp(): boolean {
    return fs.existsSync(this.factsFile) && this.hubRuns();
  }

  /** The environment of the Hub and of the servers, with this tree's package installed. */
  overlayUp(): void {
    fs.rmSync(this.overlay, { recursive: true, force: true });
    run([path.join(REPO, "tests/setup/overlay.sh"), path.join(DEV, ENVIRONMENT), this.overlay]);
    // Without JupyterLab's question about news.
    const settings = path.join(this.overlay, "share/jupyter/lab/settings");
    fs.mkdirSync(settings, { recursive: true });
    const overrides = { "@jupyterlab/apputils-extension:notification": { fetchNews: "false" } };
    fs.writeFileSync(path.join(settings, "overrides.json"), JSON.stringify(overrides));
    // Turns off what costs a server half a second at each page: asking yarn whether to build, and listing export formats.
    const page = {
      buildAvailable: false,
      buildCheck: false,
      disabledExtensions: { "@jupyterlab/notebook-extension:export": true },
    };
    fs.writeFileSync(path.join(settings, "page_config.json"), JSON.stringify(page));
  }

  // The Hub.

  /** Starts the Hub, with these lines of configuration below the page's. */
  startHub(extra = "", host: Host = {}): void {
    this.stopHub();
    const account = host.account;
    // What the Hub keeps is its account's alone.
    const place = path.join(this.base, account ? `hub-of-${account.name}` : "hub");
    fs.mkdirSync(place, { recursive: true, mode: 0o700 });
    fs.writeFileSync(path.join(place, "extra.py"), extra);
    // Another cluster of this machine may have the users' homes in /etc/passwd: this Hub sees ours. All of /etc, since a
    // file that is mounted goes with the next one that is moved over it.
    const etc = path.join(place, "etc");
    fs.rmSync(etc, { recursive: true, force: true });
    run(["cp", "-a", "/etc", etc]);
    const table = fs.readFileSync("/etc/passwd", "utf8");
    fs.writeFileSync(
      path.join(etc, "passwd"),
      table.replace(/^(alice|bob|carol)((?::[^:]*){4}):[^:]*:/gm, `$1$2:${this.base}/home/$1:`),
    );
    const become = account ? this.account(account.name, account.groups, place, etc) : [];
    host.etc?.(etc);
    const env = {
      HUB_BASE: this.base,
      HUB_PLACE: place,
      HUB_PORT: String(this.ports()[1]),
      HUB_EXTRA: path.join(place, "extra.py"),
    };
    // Copied: whoever the Hub runs as need not be able to look into this checkout.
    for (const file of ["tests/setup/jupyterhub_config.py", "docs/jupyterhub.md"]) {
      fs.mkdirSync(path.dirname(path.join(place, file)), { recursive: true });
      fs.copyFileSync(path.join(REPO, file), path.join(place, file));
    }
    const config = path.join(place, "tests/setup/jupyterhub_config.py");
    const start = 'mount --bind "$0" /etc && exec "$@"';
    const hub = [path.join(this.overlay, "bin/jupyterhub"), "-f", config];
    const argv = ["unshare", "-m", "sh", "-c", start, etc, ...become, ...hub];
    const log = fs.openSync(path.join(this.base, "log/jupyterhub.log"), "a");
    const child = spawn(path.join(TARGET, "devcluster"), this.execArgs("root", place, argv, env), {
      detached: true,
      stdio: ["ignore", log, log],
    });
    child.unref();
    fs.closeSync(log);
    const facts: Facts = { hubPid: child.pid as number };
    fs.writeFileSync(this.factsFile, JSON.stringify(facts));
    this.poll("the Hub answers", 180, () => {
      if (!this.hubRuns()) {
        throw new Error(`the Hub ended:\n${this.hubLog().slice(-3000)}`);
      }
      return spawnSync("curl", ["-fsS", "-o", "/dev/null", `${this.url}/hub/health`]).status === 0;
    });
  }

  /** Makes an account of the Hub's host, which this machine doesn't have; the command that becomes it. */
  private account(name: string, groups: readonly string[], home: string, etc: string): string[] {
    fs.appendFileSync(path.join(etc, "passwd"), `${name}:x:${HUB_UID}:${HUB_UID}::${home}:/usr/sbin/nologin\n`);
    fs.appendFileSync(path.join(etc, "shadow"), `${name}:!:::::::\n`);
    const table = fs.readFileSync(path.join(etc, "group"), "utf8");
    const joined = table.replace(/^([^:\n]+)(:[^:\n]*:[^:\n]*:)(.*)$/gm, (line, group, middle, members) =>
      groups.includes(group) ? `${group}${middle}${members ? `${members},` : ""}${name}` : line,
    );
    fs.writeFileSync(path.join(etc, "group"), `${joined}${name}:x:${HUB_UID}:\n`);
    run(["chown", `${HUB_UID}:${HUB_UID}`, home]);
    const own = ["env", `HOME=${home}`, `USER=${name}`, `LOGNAME=${name}`];
    return ["setpriv", `--reuid=${name}`, `--regid=${name}`, "--init-groups", ...own];
  }

  stopHub(signal: NodeJS.Signals = "SIGTERM"): void {
    if (!this.hubRuns()) {
      return;
    }
    const { hubPid } = this.facts();
    process.kill(hubPid, signal);
    this.poll("the Hub is gone", 30, () => !fs.existsSync(`/proc/${hubPid}`) || isZombie(hubPid));
    if (signal === "SIGKILL") {
      // The proxy is a child of its own; the next Hub starts another.
      for (const pid of this.pids("configurable-http-proxy")) {
        process.kill(pid, "SIGKILL");
      }
    }
  }

  hubLog(): string {
    return fs.readFileSync(path.join(this.base, "log/jupyterhub.log"), "utf8");
  }

  password(user: User): string {
    const table = fs.readFileSync(path.join(this.base, "etc/passwords"), "utf8");
    const line = table.split("\n").find((entry) => entry.startsWith(`${user}:`));
    return line?.slice(user.length + 1) ?? "";
  }

  // The cluster.

  /** Runs a command as that user inside the cluster and returns what it printed. */
  as(user: User | "root", ...argv: string[]): string {
    const { status, out, err } = this.try(user, ...argv);
    if (status !== 0) {
      throw new Error(`${user}: ${argv.join(" ")} ended with ${status}: ${err.slice(-1500)}${out.slice(-500)}`);
    }
    return out;
  }

  try(user: User | "root", ...argv: string[]): { status: number; out: string; err: string } {
    const args = this.execArgs(user, this.home(user), argv);
    const done = spawnSync(path.join(TARGET, "devcluster"), args, { encoding: "utf8", timeout: 60_000 });
    return { status: done.status ?? -1, out: done.stdout, err: done.stderr };
  }

  /** Starts a command as that user inside the cluster; who calls ends it. */
  background(user: User, ...argv: string[]): ChildProcess {
    const args = this.execArgs(user, this.home(user), argv);
    return spawn(path.join(TARGET, "devcluster"), args, { stdio: "ignore" });
  }

  home(user: User | "root"): string {
    return user === "root" ? "/root" : path.join(this.base, "home", user);
  }

  /** Puts a file into the user's home, whole and the user's own: a cell may wait for it. */
  write(user: User, name: string, text: string): void {
    const file = path.join(this.home(user), name);
    const owner = fs.statSync(this.home(user));
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.chownSync(path.dirname(file), owner.uid, owner.gid);
    fs.writeFileSync(`${file}.new`, text);
    fs.chownSync(`${file}.new`, owner.uid, owner.gid);
    fs.renameSync(`${file}.new`, file);
  }

  /** Removes a file from the user's home, if it is there. */
  remove(user: User, name: string): void {
    fs.rmSync(path.join(this.home(user), name), { force: true });
  }

  /** Rows of `hop COMMAND .. --json`. */
  hop(...argv: string[]): Record<string, unknown>[] {
    return JSON.parse(this.as("root", "hop", ...argv, "--json")).rows;
  }

  /** The jobs of a user, by squeue: `id name state`. */
  jobs(user: User): { id: string; name: string; state: string }[] {
    const lines = this.as("root", "squeue", "-h", "-u", user, "-o", "%i %j %T").trim().split("\n");
    return lines.filter(Boolean).map((line) => {
      const [id, name, state] = line.split(" ") as [string, string, string];
      return { id, name, state };
    });
  }

  deploy(verb: string, check = true): void {
    // Of cells, those of a batch alone can be parked.
    const pool = { POOL_EXTRA: "quantum = { batch_s = 2, worth_waiting_s = 0 }", LINGER_MS: "3000" };
    const env = { ...process.env, PROFILE, PILOTS: "1", GPUS_PER_PILOT: "1", ...pool };
    const python = path.join(DEV, ENVIRONMENT === "hub" ? "user" : ENVIRONMENT, "bin/python");
    const done = spawnSync(path.join(REPO, "tests/setup/deploy.sh"), [verb, this.base], {
      env: { ...env, HOPD_PORT: String(this.ports()[0]), USER_PYTHON: python },
      encoding: "utf8",
      timeout: 120_000,
    });
    if (check && done.status !== 0) {
      throw new Error(`deploy.sh ${verb}: ${done.stderr.slice(-2000)}`);
    }
  }

  /** Adds a line to slurm.conf, or takes it away again, and has Slurm read it. */
  slurmConf(line: string, there: boolean): void {
    const file = path.join(this.base, "etc/slurm.conf");
    const text = fs.readFileSync(file, "utf8").replace(`${line}\n`, "");
    fs.writeFileSync(file, there ? `${text}${line}\n` : text);
    this.as("root", "scontrol", "reconfigure");
  }

  /** A node that was lost is there again, without what ran on it, as slurmctld finds it after SlurmdTimeout. */
  bringBack(node: string): void {
    this.as("root", "scontrol", "update", `NodeName=${node}`, "State=DOWN", "Reason=lost");
    this.devcluster("start-slurmd", node);
    this.try("root", "scontrol", "update", `NodeName=${node}`, "State=RESUME");
    this.gpusAreThere();
  }

  /** Ends hopd as a crash would; `deploy("hopd")` starts it again. */
  stopHopd(): void {
    process.kill(Number(fs.readFileSync(path.join(this.base, "run/hopd.pid"), "utf8")), "SIGKILL");
  }

  devcluster(verb: string, ...argv: string[]): string {
    return run([path.join(TARGET, "devcluster"), verb, "--base", this.base, ...argv]);
  }

  /** Pids of this cluster's processes whose command line contains the words. */
  pids(words: string): number[] {
    return fs
      .readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .map(Number)
      .filter((pid) => {
        try {
          const line = fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
          const marked = fs.readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
          return line.includes(words) && marked.includes(`HOP_DEV_CLUSTER=${this.base}`);
        } catch {
          return false;
        }
      });
  }

  /** Pids of the users' Jupyter servers. */
  servers(): number[] {
    return this.running(`${this.overlay}/bin/jupyterhub-singleuser`);
  }

  /** Pids of the fronts of their kernels. */
  fronts(): number[] {
    return this.running(`${this.base}/opt/bin/hop-front`);
  }

  /** Pids by the program: Slurm's jobs don't bear the mark of this cluster. */
  private running(program: string): number[] {
    return fs
      .readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .filter((name) => {
        try {
          return fs.readFileSync(`/proc/${name}/cmdline`, "utf8").includes(program);
        } catch {
          return false;
        }
      })
      .map(Number);
  }

  /** Waits until it is so, without a browser. */
  poll(what: string, seconds: number, so: () => boolean): void {
    const until = Date.now() + seconds * 1000;
    while (!so()) {
      if (Date.now() > until) {
        throw new Error(`after ${seconds} s still not so: ${what}`);
      }
      spawnSync("sleep", ["0.2"]);
    }
  }

  private execArgs(user: string, folder: string, argv: string[], more: Record<string, string> = {}): string[] {
    const env = {
      GRESSHOPPER_CONF: path.join(this.base, "etc/gresshopper.toml"),
      GRESSHOPPER_PREFIX: path.join(this.base, "opt"),
      JUPYTER_PATH: path.join(this.base, "opt/share/jupyter"),
      ...more,
    };
    const pairs = Object.entries(env).flatMap(([name, value]) => ["--env", `${name}=${value}`]);
    return ["exec", "--base", this.base, "--user", user, "--chdir", folder, ...pairs, "--", ...argv];
  }

  /** Ports of this cluster that are nobody's. */
  freePorts(): [number, number] {
    const [first] = this.ports();
    return [first + 10, first + 39];
  }

  /** Ports of this cluster that are the tests' own: hopd's, the proxy's, the Hub's, the proxy's API. */
  ports(): [number, number, number, number] {
    this.firstPort ??= Number(/HOP_DEV_PORTS='(\d+)/.exec(this.devcluster("env"))?.[1]);
    return [this.firstPort, this.firstPort + 1, this.firstPort + 2, this.firstPort + 3];
  }

  private hubRuns(): boolean {
    if (!fs.existsSync(this.factsFile)) {
      return false;
    }
    const { hubPid } = this.facts();
    try {
      const line = fs.readFileSync(`/proc/${hubPid}/cmdline`, "utf8");
      // Empty while it becomes another program.
      return (line === "" || line.includes(this.base)) && !isZombie(hubPid);
    } catch {
      return false;
    }
  }

  private facts(): Facts {
    return JSON.parse(fs.readFileSync(this.factsFile, "utf8"));
  }

  private get factsFile(): string {
    return path.join(this.base, "run/browser.json");
  }
}

function run(argv: string[]): string {
  const [program, ...rest] = argv as [string, ...string[]];
  const done = spawnSync(program, rest, { encoding: "utf8", timeout: 240_000 });
  if (done.status !== 0) {
    throw new Error(`${argv.join(" ")}: ${done.stderr?.slice(-2000) ?? done.error}`);
  }
  return done.stdout;
}

function isZombie(pid: number): boolean {
  try {
    return fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.startsWith("Z") ?? true;
  } catch {
    return true;
  }
}
