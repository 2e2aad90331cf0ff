/** Brings the site up before all tests, and takes it down after them. */
import { KEEP, Site } from "./support/site";

export default function setup(): (() => void) | undefined {
  const site = new Site();
  if (!(KEEP && site.isUp())) {
    try {
      site.up();
    } catch (error) {
      site.down();
      throw error;
    }
  }
  return KEEP ? undefined : () => site.down();
}
