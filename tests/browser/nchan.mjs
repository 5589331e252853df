// npm's nchan client in Chromium, by each of its transports: what was published before and what is published then, each once. Says what
// each has heard (JSON). usage: nchan.mjs CHROMIUM URL; the page has loaded NchanSubscriber.js
import { chromium } from "playwright-core";

const PATIENCE_MS = 90000;
const [executablePath, url] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], timeout: PATIENCE_MS });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  await page.goto(url);
  const publish = (text) => page.evaluate((body) => fetch("/channel", { method: "POST", body }), text);
  const until = (count) => page.waitForFunction((n) => Object.values(heard).every((all) => all.length >= n), count);
  await publish("before");
  await page.evaluate(() => {
    window.heard = {};
    window.subscribers = ["longpoll", "eventsource", "websocket"].map((subscriber) => {
      const one = new NchanSubscriber(location.origin + "/channel", { subscriber });
      heard[subscriber] = [];
      one.on("message", (text, about) => heard[subscriber].push([text, !!about.id]));
      one.start();
      return one;
    });
  });
  await until(1);
  await publish("then: ä😀");
  await until(2);
  // Who stops and starts again goes on behind what it has had.
  await page.evaluate(() => subscribers.forEach((one) => one.stop()));
  await publish("meanwhile");
  await page.evaluate(() => subscribers.forEach((one) => one.start()));
  await until(3);
  await publish("after");
  await until(4);
  console.log(JSON.stringify(await page.evaluate(() => heard)));
} finally {
  await browser.close();
}
