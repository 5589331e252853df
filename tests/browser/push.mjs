// Two pages in Chromium that hear a channel by EventSource and WebSocket: what is typed in one appears in the other. Says what both have
// heard (JSON). usage: push.mjs CHROMIUM URL
import { chromium } from "playwright-core";

const PATIENCE_MS = 90000;
const [executablePath, url] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], timeout: PATIENCE_MS });
try {
  const pages = [await browser.newPage(), await browser.newPage()];
  for (const page of pages) {
    page.setDefaultTimeout(PATIENCE_MS);
    await page.goto(url);
    await page.locator("#state", { hasText: "both" }).waitFor();
  }
  const type = async (page, text) => {
    await page.locator("#words").fill(text);
    await page.locator("#words").press("Enter");
  };
  const until = (page, count) =>
    page.waitForFunction((n) => heard.events.length >= n && heard.frames.length >= n, count);
  await type(pages[0], "typed here");
  await until(pages[1], 1);
  await type(pages[1], "and there: ä😀");
  for (const page of pages) await until(page, 2);
  console.log(JSON.stringify(await Promise.all(pages.map((page) => page.evaluate(() => heard)))));
} finally {
  await browser.close();
}
