// The page of examples/air in Chromium, through Ironweir: what it shows as JSON, and pictures.
// usage: air.mjs CHROMIUM URL FOLDER
import { chromium } from "playwright-core";

const PATIENCE_MS = 90000;
const [executablePath, url, folder] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], timeout: PATIENCE_MS });
try {
  const errors = [];
  const look = async (name, width, colorScheme) => {
    const page = await browser.newPage({ viewport: { width, height: 800 }, colorScheme, httpCredentials: { username: "ann", password: "secret" } });
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
    await page.goto(url);
    await page.locator("path.small").waitFor();
    await page.locator("#rows tr").first().waitFor();
    await page.screenshot({ path: `${folder}/air-${name}.png`, fullPage: true });
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    return { page, overflow };
  };
  const wide = await look("wide", 1280, "light");
  const narrow = await look("narrow", 360, "dark");
  const text = (id) => wide.page.locator(id).innerText();
  const said = { now: await text("#now"), rows: await text("#rows"), notes: await text("#notes"), overflow: [wide.overflow, narrow.overflow] };
  await wide.page.getByRole("button", { name: "6 h" }).click();
  said.pressed = await wide.page.locator("button[aria-pressed=true]").innerText();
  await wide.page.getByLabel("What happened now").fill("window open");
  await wide.page.getByRole("button", { name: "Mark now" }).click();
  await wide.page.locator("#marking input").evaluate((input) => new Promise((done) => { const look = () => (input.value ? setTimeout(look, 20) : done()); look(); }));
  said.said = await text("#said");
  said.errors = errors;
  console.log(JSON.stringify(said));
} finally {
  await browser.close();
}
