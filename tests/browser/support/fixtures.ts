/** What each test is given: the site, and people who are signed in with their servers up. */
import { test as base } from "@playwright/test";
import { Person } from "./lab";
import { Site } from "./site";

interface People {
  readonly site: Site;
  readonly alice: Person;
  readonly bob: Person;
}

interface Cleaner {
  readonly clean: undefined;
}

export const test = base.extend<Cleaner, People>({
  // biome-ignore lint/correctness/noEmptyPattern: Playwright reads a fixture's needs from this pattern.
  site: [async ({}, use) => use(new Site()), { scope: "worker" }],
  alice: [
    async ({ site, browser }, use) => {
      const alice = await Person.atWork(site, browser, "alice");
      await use(alice);
      await alice.close();
    },
    { scope: "worker" },
  ],
  bob: [
    async ({ site, browser }, use) => {
      const bob = await Person.atWork(site, browser, "bob");
      await use(bob);
      await bob.close();
    },
    { scope: "worker" },
  ],
  clean: [
    async ({ site, alice, bob }, use, info) => {
      await use(undefined);
      site.deploy("hopd");
      for (const person of [alice, bob]) {
        if (info.status !== info.expectedStatus) {
          await person.attach(info);
        }
        await person.endKernels();
      }
    },
    { auto: true },
  ],
});

export { expect } from "@playwright/test";
