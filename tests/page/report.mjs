// Opens reports of `gcra-spoa replay --html` and `blocked --html` in Chromium, and holds them
// against `--json`:
//     node tests/page/report.mjs [PROGRAM [FOLDER FOR SCREENSHOTS]]
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const program = resolve(process.argv[2] || 'target/debug/gcra-spoa');
const screenshots = process.argv[3] && resolve(process.argv[3]);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const folder = mkdtempSync(join(tmpdir(), 'gcra-report-'));
const start = Date.UTC(2026, 10, 20);

// ---- Logs

// A line as `option httplog` writes it, with the user agent as captured header.
function line(ms, ip, agent = 'Firefox', path = '/') {
  const [date, time] = new Date(ms).toISOString().slice(0, -1).split('T');
  const [year, , day] = date.split('-');
  return (
    `${ip}:4711 [${day}/Nov/${year}:${time}] web app/srv1 0/0/0/1/1 200 99 - - ---- ` +
    `1/1/0/0/0 0/0 {${agent}} "GET ${path} HTTP/1.1"`
  );
}

// Visitors of a day, one machine every two seconds, and a burst.
function day() {
  const lines = [];
  let random = 7;
  const below = (n) => (random = (random * 48271) % 2147483647) % n;
  for (let visitor = 0; visitor < 900; visitor++) {
    const begin = start + below(86_000_000);
    for (let part = 0; part < 5 + below(20); part++) {
      lines.push([begin + part * (20 + below(900)), `198.51.${visitor >> 8}.${visitor & 255}`]);
    }
  }
  for (let at = 0; at < 86_400; at += 2) lines.push([start + at * 1000, '192.0.2.1', 'curl']);
  for (let at = 0; at < 3000; at++)
    lines.push([start + 50_000_000 + at * 10, '192.0.2.2', 'scan']);
  return lines.sort((a, b) => a[0] - b[0]).map((words) => line(...words));
}

const breakout =
  '</script><script>alert(1)</script><img src=x onerror=alert(2)><!--\u2028{{script}}';
const cases = {
  day: [day(), '--rate', '1/s', '--burst', '20', '--suggest', 'key=ip'],
  none: [day().slice(0, 5000), '--rate', '1000/s', '--suggest', 'key=ip'],
  one: [[line(start, '192.0.2.1')], '--rate', '1/s', '--suggest', 'key=ip'],
  suggested: [day(), '--suggest', 'key=ip'],
  hostile: [
    [
      line(start, '192.0.2.1'),
      breakout,
      ...Array.from({ length: 40 }, (_, at) =>
        line(start + at, '192.0.2.2', breakout, `/${breakout.replaceAll(' ', '')}`),
      ),
    ],
    '--rate',
    '1/m',
    '--burst',
    '1',
    '--suggest',
    'key=path',
  ],
};

// A line as the shipped configurations write it.
const said = (ms, ip, words) =>
  line(ms, ip)
    .replace('200 99 - - ----', '200 99 ----')
    .replace(' {Firefox}', '') + ` ${words}`;

// A day with clients that are blocked for ten minutes, and five minutes without a decision.
function blockedDay() {
  return Array.from({ length: 17_280 }, (_, at) => {
    const [ms, ip] = [start + at * 5_000, `192.0.2.${at % 40}`];
    const minute = at / 12;
    if (minute >= 840 && minute < 850)
      return said(ms, ip, `blocked=1 policy=check reason=limit retry_after=${at % 700} err=-`);
    if (minute >= 900 && minute < 905)
      return said(ms, ip, 'blocked=- policy=- reason=- retry_after=- err=1');
    return said(ms, ip, 'blocked=0 policy=check reason=- retry_after=0 err=-');
  });
}
const reports = {
  blocked: [blockedDay()],
  breakout: [
    [
      breakout,
      said(start, '192.0.2.1', 'blocked=- policy=- reason=- retry_after=- err=1'),
      ...Array.from({ length: 40 }, (_, at) =>
        said(
          start + at,
          '192.0.2.1',
          `blocked=1 policy=${breakout.replaceAll(' ', '')} reason=<b> retry_after=9 err=-`,
        ),
      ),
    ],
  ],
};

function replay(name, [lines, ...flags], command = 'replay') {
  const [log, html] = [join(folder, `${name}.log`), join(folder, `${name}.html`)];
  writeFileSync(log, lines.map((one) => `${one}\n`).join(''));
  const words = [command, ...flags, '--html', html, '--json', log];
  const json = execFileSync(program, words, {
    maxBuffer: 1 << 28,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  return { url: `file://${html}`, report: JSON.parse(json) };
}

// ---- Pages

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
  args: ['--no-sandbox'],
});

// Opens a page in which nothing may go wrong.
async function open(url, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1280, height: 900 },
    ...options,
  });
  const page = await context.newPage();
  const wrong = [];
  page.on('console', (message) => wrong.push(message.text()));
  page.on('pageerror', (error) => wrong.push(error.stack));
  page.on('dialog', (dialog) => {
    wrong.push(`dialog ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on(
    'request',
    (request) => request.url() === url || wrong.push(`request ${request.url()}`),
  );
  await page.goto(url);
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg')),
  );
  return {
    page,
    async done() {
      await context.close();
      assert.deepEqual(wrong, []);
    },
  };
}

const plain = (text) => text.replace(/[\u202f\u2068\u2069]/g, '');
const read = async (page, selector) => plain(await page.locator(selector).first().innerText());

async function looksRight(name, url) {
  const all = {
    narrow: [320, 700],
    phone: [390, 844],
    tablet: [768, 1024],
    wide: [1920, 1080],
  };
  // The other pages have the same parts, or fewer.
  const sizes = ['day', 'hostile', 'blocked'].includes(name) ? all : { phone: all.phone };
  for (const colorScheme of ['light', 'dark']) {
    for (const [size, [width, height]] of Object.entries(sizes)) {
      const { page, done } = await open(url, { viewport: { width, height }, colorScheme });
      const found = await page.evaluate(() => {
        const cut = [...document.querySelectorAll('.plot text')].filter((text) => {
          const [box, around] = [text, text.ownerSVGElement].map((one) =>
            one.getBoundingClientRect(),
          );
          return (
            box.left < around.left - 2 ||
            box.right > around.right + 2 ||
            box.top < around.top - 2 ||
            box.bottom > around.bottom + 2
          );
        });
        return {
          over: document.documentElement.scrollWidth - innerWidth,
          cut: cut.map((text) => text.textContent),
        };
      });
      assert.deepEqual(found, { over: 0, cut: [] }, `${name}, ${size}`);
      if (screenshots) {
        await page.screenshot({
          path: join(screenshots, `${name}-${size}-${colorScheme}.png`),
          fullPage: true,
        });
      }
      await done();
    }
  }
}

async function isAccessible(name, url) {
  for (const colorScheme of ['light', 'dark']) {
    // axe is a script of its own, which the page's policy would not let in.
    const { page, done } = await open(url, { colorScheme, bypassCSP: true });
    await page
      .locator('details > summary')
      .evaluateAll((all) => all.forEach((one) => one.click()));
    await page.evaluate(axe);
    const { violations } = await page.evaluate('axe.run()');
    const words = violations.map(
      ({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' ')}`,
    );
    assert.deepEqual(words, [], name);
    await done();
  }
}

async function numbersAgree(url, report) {
  const { page, done } = await open(url);
  const { total, timeline, suggest } = report;
  const decided = total.allowed + total.blocked + total.would_block;
  assert.match(
    await read(page, 'h1'),
    new RegExp(
      `^${total.clients_blocked} of ${total.clients} clients would have been blocked: ` +
        String.raw`\S+% of the requests\.$`,
    ),
  );
  const facts = plain(await page.locator('.facts').innerText());
  for (const number of [decided, total.allowed, total.blocked])
    assert.ok(facts.includes(String(number)), facts);

  // The table behind the plot has each request once.
  await page.locator('summary').first().click();
  // A browser says later that something was opened.
  const filled = page.locator('details table').first().locator('tbody tr');
  await filled.first().waitFor();
  const rows = await filled.allInnerTexts();
  const column = (at) =>
    rows.reduce((sum, row) => sum + Number(plain(row).split('\t').at(at)), 0);
  assert.equal(column(1), total.allowed);
  assert.equal(column(2), total.blocked);
  assert.equal(
    timeline.blocked.reduce((sum, n) => sum + n),
    total.blocked,
  );

  // The arrow keys walk through the plot; what they say adds up, too.
  const plot = page.getByRole('slider', { name: 'Requests over time' });
  await plot.focus();
  await page.keyboard.press('Home');
  let [blocked, text, before] = [0, await plot.getAttribute('aria-valuetext'), null];
  for (let steps = 0; text !== before && steps < 2000; steps++) {
    blocked += Number(/(\d+) blocked/.exec(plain(text))[1]);
    before = text;
    await page.keyboard.press('ArrowRight');
    text = await plot.getAttribute('aria-valuetext');
  }
  assert.equal(blocked, total.blocked);
  assert.ok(await page.locator('.tip').first().isVisible());
  await page.keyboard.press('Escape');
  assert.ok(!(await page.locator('.tip').first().isVisible()));

  const cards = (await page.locator('.limits li').allInnerTexts()).map(plain);
  suggest.suggestions.forEach((one, at) => {
    assert.ok(cards[at].includes(`${one.rate} burst ${one.burst}`), cards[at]);
    assert.ok(cards[at].includes(`blocks ${one.requests_blocked} request`), cards[at]);
  });
  const everything = plain(await page.locator('main').innerText());
  for (const client of report.most_blocked)
    assert.ok(everything.includes(client.client), client.client);
  await done();
}

try {
  for (const [name, one] of Object.entries(cases)) {
    const { url, report } = replay(name, one);
    await looksRight(name, url);
    await isAccessible(name, url);
    if (name === 'day') {
      await numbersAgree(url, report);
      const context = await browser.newContext({ javaScriptEnabled: false });
      const page = await context.newPage();
      await page.goto(url);
      assert.match(await page.locator('noscript').innerText(), /draws itself with JavaScript/);
      await context.close();
    }
    const { page, done } = await open(url);
    const headline = await read(page, 'h1');
    if (name === 'one')
      assert.equal(headline, 'The only client of this log would not have been blocked.');
    if (name === 'none')
      assert.match(headline, /^None of \d+ clients would have been blocked\.$/);
    if (name === 'suggested')
      assert.match(headline, /^A limit of \S+ with a burst of \d+ would have touched/);
    if (name === 'hostile') {
      assert.ok(report.bad.length > 0);
      assert.ok(
        (await read(page, 'main')).includes('</script><script>alert(1)'),
        'shown as text',
      );
    }
    await done();
    console.log(`ok ${name}: ${headline}`);
  }
  for (const [name, one] of Object.entries(reports)) {
    const { url, report } = replay(name, one, 'blocked');
    await looksRight(name, url);
    await isAccessible(name, url);
    const { page, done } = await open(url);
    const [headline, everything] = [await read(page, 'h1'), await read(page, 'main')];
    assert.ok(headline.startsWith(`An agent blocked ${report.blocked} requests of `), headline);
    const none = report.no_decision.requests;
    const requests = none === 1 ? '1 request' : `${none} requests`;
    assert.ok(headline.endsWith(`HAProxy got no decision about ${requests}.`), headline);
    for (const { client, blocked } of report.clients)
      assert.match(everything, new RegExp(`${client}\\t[^\n]*\\t${blocked}\\t`));
    if (name === 'breakout') {
      assert.equal(report.bad.length, 1);
      assert.ok(everything.includes('</script><script>alert(1)'), 'shown as text');
    }
    await done();
    console.log(`ok ${name}: ${headline}`);
  }
} finally {
  await browser.close();
  rmSync(folder, { recursive: true });
}
