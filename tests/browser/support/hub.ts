/** JupyterHub itself: its REST API, and people at its pages. */
import * as fs from "node:fs";
import * as path from "node:path";
import { type Browser, expect, type Page } from "@playwright/test";
import { REPO, type Site, type User } from "./site";

/** The token of an administrator's service. */
export const TOKEN = "0123456789abcdef0123456789abcdef";

/** What the Hub's configuration has for these tests, below that of the page. */
export const BASE = `
c.JupyterHub.allow_named_servers = True
c.JupyterHub.services = [{"name": "tests", "api_token": "${TOKEN}"}]
c.JupyterHub.load_roles = [
    {"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "admin:groups", "tokens"]},
]
`;

/** The blocks of code below a heading of docs/jupyterhub.md, in this site's places. */
export function ofPage(site: Site, heading: string): string[] {
  const page = fs.readFileSync(path.join(REPO, "docs/jupyterhub.md"), "utf8");
  const section = page.split(/^## /m).find((text) => text.startsWith(`${heading}\n`)) ?? "";
  const blocks = [...section.matchAll(/^```\w*\n([\s\S]*?)^```$/gm)].map((match) => match[1] as string);
  expect(blocks, `blocks of ${heading}`).not.toEqual([]);
  return blocks.map((block) => block.replaceAll("/opt/hub", site.overlay));
}

export class Hub {
  constructor(readonly site: Site) {}

  /** Calls the Hub's REST API as an administrator. */
  async api(
    method: string,
    place: string,
    body?: unknown,
  ): Promise<{ status: number; json: Record<string, unknown> }> {
    const call = () =>
      fetch(`${this.site.url}/hub/api/${place}`, {
        method,
        headers: { Authorization: `token ${TOKEN}` },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
    // A connection that was kept may be to a Hub that has been stopped since.
    const response = await call().catch(call);
    const text = await response.text();
    return { status: response.status, json: text ? JSON.parse(text) : {} };
  }

  async user(user: User): Promise<void> {
    await this.api("POST", `users/${user}`);
  }

  async server(user: User, name = ""): Promise<{ ready: boolean; pending: string | null } | undefined> {
    const { json } = await this.api("GET", `users/${user}`);
    return (json.servers as Record<string, { ready: boolean; pending: string | null }> | undefined)?.[name];
  }

  async ready(user: User, name = ""): Promise<void> {
    await expect.poll(async () => (await this.server(user, name))?.ready, { timeout: 180_000 }).toBe(true);
  }

  async start(user: User, name = "", options: Record<string, unknown> = {}): Promise<number> {
    const place = name ? `servers/${name}` : "server";
    return (await this.api("POST", `users/${user}/${place}`, options)).status;
  }

  async stop(user: User, name = ""): Promise<void> {
    const place = name ? `servers/${name}` : "server";
    await this.api("DELETE", `users/${user}/${place}`, name ? { remove: true } : {});
  }

  /** Stops all that the person has, and waits until Slurm has nothing of it. */
  async quiet(user: User): Promise<void> {
    const { json } = await this.api("GET", `users/${user}`);
    for (const name of Object.keys((json.servers as object | undefined) ?? {})) {
      await this.stop(user, name);
    }
    await expect.poll(() => this.jobs(user), { timeout: 120_000 }).toEqual([]);
  }

  /** The person's servers as Slurm has them. */
  jobs(user: User): { id: string; state: string }[] {
    const jobs = this.site.jobs(user).filter((job) => job.name === "jupyter-gresshopper");
    // squeue sorts by state and priority.
    return jobs.map(({ id, state }) => ({ id, state })).sort((a, b) => Number(a.id) - Number(b.id));
  }

  /** The port that the person's server told, as it stands in their home. */
  port(user: User): string {
    const folder = path.join(this.site.home(user), ".local/share/gresshopper/servers");
    // Names begin with the time; a server that was killed from outside leaves its file behind.
    const files = fs.readdirSync(folder).filter((name) => name.endsWith(".port"));
    const file = files.sort().at(-1);
    return file ? fs.readFileSync(path.join(folder, file), "utf8") : "";
  }

  /** A field of a job of Slurm's. */
  field(job: string, name: string): string {
    const shown = this.site.as("root", "scontrol", "show", "job", "-o", job);
    return new RegExp(`\\b${name}=(\\S*)`).exec(shown)?.[1] ?? "";
  }

  /** Whether new jobs may start. */
  open(open: boolean): void {
    const state = `State=${open ? "UP" : "DOWN"}`;
    this.site.as("root", "scontrol", "update", "PartitionName=notebook", state);
  }
}

/** Signs in, in a window of its own. */
export async function signIn(site: Site, browser: Browser, user: User, next = ""): Promise<Page> {
  const context = await browser.newContext({ reducedMotion: "reduce" });
  await context.addInitScript(stopCursors);
  const page = await context.newPage();
  await page.goto(`${site.url}/hub/login${next ? `?next=${encodeURIComponent(next)}` : ""}`);
  await page.fill("#username_input", user);
  await page.fill("#password_input", site.password(user));
  await page.click("#login_submit");
  return page;
}

/** Runs in each page. Chromium draws a blinking cursor sixty times a second: 15 % of a core for each open notebook. */
function stopCursors(): void {
  document.addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = ".cm-cursorLayer { animation: none !important; }";
    document.head.append(style);
  });
}
