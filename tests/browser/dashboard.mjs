// Drives the dashboard in Chromium, step by step as the test asks (a line each on standard input), and says what it sees (a
// line of JSON each). usage: dashboard.mjs CHROMIUM URL DIRECTORY-FOR-PICTURES
import { chromium } from "playwright-core";
import { createInterface } from "node:readline";

// A busy machine may take long for anything; who waits in vain fails all the same.
const PATIENCE_MS = 90000;
const [executablePath, url, pictures] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], timeout: PATIENCE_MS });
const page = await browser.newPage({ viewport: { width: 1280, height: 1000 } });
const errors = [];
page.on("pageerror", (error) => errors.push(error.message));
page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
page.setDefaultTimeout(PATIENCE_MS);

const row = (peer) => page.locator("#upstreams tr", { hasText: peer });
const steps = {
  async open() {
    await page.goto(url);
    await page.locator("#state", { hasText: "live" }).waitFor();
    return { title: await page.title(), version: await page.textContent("#version") };
  },
  // Waits until answers are counted.
  async load() {
    await page.waitForFunction(() => {
      const shown = document.querySelector("#tiles dd")?.firstChild?.textContent;
      return shown && parseFloat(shown) > 5;
    });
    await page.waitForTimeout(4000);
    return { rate: await page.locator("#tiles dd").first().textContent(), canvases: await page.locator("canvas").count() };
  },
  async picture(name, width, scheme) {
    await page.setViewportSize({ width: Number(width), height: 1000 });
    await page.emulateMedia({ colorScheme: scheme });
    await page.waitForTimeout(1200);
    await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
    return { overflow: await page.evaluate(() => document.documentElement.scrollWidth - innerWidth) };
  },
  async state(peer, word) {
    await row(peer).locator(".badge", { hasText: word }).first().waitFor();
    return { text: (await row(peer).innerText()).replaceAll("\n", " ") };
  },
  // By keyboard alone: focus the button, press Enter.
  async drain(peer) {
    await row(peer).getByRole("button", { name: "Drain" }).focus();
    await page.keyboard.press("Enter");
    await row(peer).locator(".badge", { hasText: /drain/ }).waitFor();
    return { focused: await page.evaluate(() => document.activeElement?.textContent) };
  },
  async weight(peer, value) {
    await row(peer).getByRole("spinbutton").fill(value);
    await page.keyboard.press("Enter");
    await page.waitForTimeout(1500);
    return { value: await row(peer).getByRole("spinbutton").inputValue() };
  },
  async keys() {
    await page.locator("h1").click();
    await page.keyboard.press("/");
    const filter = await page.evaluate(() => document.activeElement?.id);
    await page.keyboard.press("Escape");
    await page.keyboard.press("t");
    const theme = await page.evaluate(() => document.documentElement.dataset.theme);
    await page.keyboard.press("p");
    const state = await page.textContent("#state");
    await page.keyboard.press("p");
    return { filter, theme, state };
  },
  // What the Down button says after so many clicks, and the peer's state.
  async down(peer, clicks) {
    const button = row(peer).locator("button").last();
    for (let i = 0; i < Number(clicks); i += 1) {
      const before = await button.textContent();
      await button.click();
      // The page asks the server anew first, which takes as long as the machine lets it.
      for (let tries = 0; tries < 50 && (await button.textContent()) === before; tries += 1) {
        await page.waitForTimeout(50);
      }
    }
    return { button: await button.textContent(), row: (await row(peer).innerText()).replaceAll("\n", " ") };
  },
  // What is said of a refused request's id.
  async why(id) {
    const input = page.locator("#why-refused input");
    await input.fill(id);
    await page.keyboard.press("Enter");
    await page.locator("#why-refused td, #why-refused p").first().waitFor();
    // What was found stays while the page looks on.
    await page.waitForTimeout(2500);
    return { text: (await page.locator("#why-refused").innerText()).replaceAll("\n", " "), typed: await input.inputValue() };
  },
  // The panel of what is in the way, once its sentence has a text: the sentence, what was seen, and where the time of a request goes.
  async way(...words) {
    const sentence = page.locator("#why .finding", { hasText: words.join(" ") });
    await sentence.waitFor();
    const rows = await page.locator("#why tbody tr").evaluateAll((all) => all.map((tr) => ({
      text: tr.innerText.replaceAll("\n", " "),
      bar: Math.max(0, ...[...tr.querySelectorAll(".meter > *")].map((e) => e.getBoundingClientRect().width)),
    })));
    return {
      sentence: await sentence.innerText(),
      bad: await sentence.evaluate((e) => e.classList.contains("bad")),
      seen: (await page.locator("#why .findings").allInnerTexts()).join(" ").replaceAll("\n", " "),
      head: (await page.locator("#why thead").allInnerTexts()).join(" ").replaceAll("\n", " "),
      rows,
    };
  },
  // Once the sentence no longer has a text: a machine may have other troubles.
  async over(...words) {
    const text = words.join(" ");
    await page.waitForFunction((t) => { const e = document.querySelector("#why .finding"); return e && !e.textContent.includes(t); }, text);
    return { sentence: await page.locator("#why .finding").innerText(), seen: (await page.locator("#why .findings").allInnerTexts()).join(" ") };
  },
  async text(section) {
    return { text: (await page.locator(`#${section}`).innerText()).replaceAll("\n", " ") };
  },
  async gone() {
    await page.locator("#gone", { hasText: "No answer since" }).waitFor();
    return { size: await page.locator("#gone").evaluate((e) => parseFloat(getComputedStyle(e).fontSize)) };
  },
  async errors() {
    return { errors };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...words] = line.split(" ");
  let said;
  try {
    said = await steps[name](...words);
  } catch (error) {
    said = { failed: String(error), errors };
  }
  console.log(JSON.stringify(said));
}
await browser.close();
