// The live page in Chromium, beside agents with known traffic. Usage: test.mjs PROGRAM PICTURES
import { chromium } from 'playwright-core';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { createRequire } from 'node:module';
import { Agent, Traffic, run, sleep, stopAll, until } from './agent.mjs';
import { Spop } from './spop.mjs';

const [program, pictures] = process.argv.slice(2);
const axe = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const directory = fs.mkdtempSync(path.join(fs.existsSync('/dev/shm') ? '/dev/shm' : os.tmpdir(), 'gcra-page-'));
fs.mkdirSync(pictures, { recursive: true });
const token = 'correct-horse-battery-staple';
const file = (name, text, mode = 0o600) => {
  const to = path.join(directory, name);
  fs.writeFileSync(to, text, { mode });
  return to;
};
// What a customer may call itself.
const called = '<img src=x onerror=alert(1)>-with-a-long-word-and-no-blank';
file('customers.txt', `192.0.2.8 = ${called}\n`);
const config = file('gcra-spoa.toml', `
names_file = "customers.txt"

[policy.api]
message = "check"
key = ["ip"]
limits = ["10/s burst 20", "400/m burst 200"]

[policy.login]
message = "login"
key = ["user"]
limits = "5/h burst 5"
observe = "2/h burst 2"

[policy.trial]
message = "trial"
key = ["ip"]
limits = "2/s burst 5"
mode = "observe"
`);
const argsOf = (config, name, ...more) => ['--config', config, '--table', path.join(directory, name), '--slots', '16384', '--listen', '127.0.0.1:0', '--drain', '0', ...more];
const args = (name, ...more) => argsOf(config, name, ...more);
// Below the ports that the kernel gives to clients, so that none has it meanwhile.
let ports = process.pid * 97;
const port = () => new Promise((resolve) => {
  const number = 10000 + ports++ % 20000;
  const server = net.createServer().listen(number, '127.0.0.1', () => server.close(() => resolve(`127.0.0.1:${number}`)));
  server.on('error', () => resolve(port()));
});
const hostile = '<script>alert(1)</script>';
// A client above its limit is so at any speed of this machine, because it comes in bursts.
function plan(round) {
  return [
    { message: 'check', args: [...Array.from({ length: 6 }, (_, i) => ({ ip: `198.51.100.${(round * 7 + i * 13) % 200}` })), ...Array(30).fill({ ip: '192.0.2.7' })] },
    { message: 'login', args: [{ user: hostile }, { user: 'alice@example.com' }] },
    { message: 'trial', args: Array(10).fill({ ip: '192.0.2.8' }) },
  ];
}

let tests = 0;
const began = Date.now();
async function test(name, body) {
  try {
    await body();
  } catch (error) {
    console.error(`FAILED: ${name}\n${error.stack}`);
    for (const [id, open] of Object.entries(pages)) {
      await open.screenshot({ path: path.join(pictures, `failed-${id}.png`), fullPage: true }).catch(() => {});
    }
    finish(1);
  }
  tests++;
  console.log(`ok: ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
}
function finish(status) {
  stopAll();
  fs.rmSync(directory, { recursive: true, force: true });
  process.exit(status);
}
setTimeout(() => { console.error('FAILED: it took more than ten minutes'); finish(1); }, 600000).unref();

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
const pages = {}, complaints = [], requests = [];
async function open(name, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, timezoneId: 'UTC', ...options });
  const page = pages[name] = await context.newPage();
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener('securitypolicyviolation', (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
    window.alert = () => { window.violations.push('alert'); };
    // How much moves without the reader's doing.
    window.shifts = [];
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.shifts.push(entry.hadRecentInput ? 0 : entry.value))).observe({ type: 'layout-shift', buffered: true });
  });
  page.on('pageerror', (error) => complaints.push(`${name}: ${error.stack}`));
  page.on('console', (message) => {
    // Chromium itself says so when an agent is down, and when a key is not one.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) complaints.push(`${name}: ${message.text()}`);
  });
  page.on('request', (request) => requests.push(request.url()));
  // For work on the page: the files of this folder in the place of those in the program.
  const folder = process.env.GCRA_PAGE;
  for (const name of folder ? ['', 'page.css', 'page.js'] : []) {
    await page.route(`${url}${name}`, async (route) => {
      const response = await route.fetch();
      const files = name === 'page.js' ? ['../../../gcra-text/src/page_parts.js', name] : [name || 'index.html'];
      await route.fulfill({ response, body: files.map((file) => fs.readFileSync(path.join(folder, file), 'utf8')).join('') });
    });
  }
  await page.goto(url);
  await page.waitForSelector('.link[data-state=live]');
  return page;
}
const text = (page, selector) => page.locator(selector).innerText();
const number = (words) => Number(words.replaceAll(',', ''));
// "since the start: 1,234 allowed, 5 blocked"
async function sums(page, policy) {
  const words = await text(page, `[data-policy="${policy}"] .nums`);
  const of = (what) => number(new RegExp(`([\\d,]+) ${what}`).exec(words)?.[1] ?? '0');
  return { allowed: of('allowed'), blocked: of('blocked'), would: of('would block') };
}
// Waits until `check` holds, and says what it said if it never does.
async function shows(what, check) {
  let last;
  await until(`the page shows ${what}`, () => check().then(() => true, (error) => { last = error; })).catch((vain) => { throw last ?? vain; });
}
async function accessible(page) {
  await page.evaluate(axe);
  const { violations, passes } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join('; ')}`), []);
  assert.ok(passes.length > 20, `${passes.length} rules applied`);
}
// The elements that stick out of the page to the right.
const sticksOut = (page) => page.evaluate(() => {
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > width + 1 && !e.closest('.scroll') && getComputedStyle(e).position !== 'absolute')
    .map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`).slice(0, 5);
});

const [adminA, adminB] = [await port(), await port()];
const a = await Agent.start(program, args('table', '--admin', adminA));
const b = await Agent.start(program, args('table', '--admin', adminB));
const traffic = new Traffic([a, b], plan);
const page = await open('wide', a.url);

await test('the page is one of the agent, and small', async () => {
  let bytes = 0;
  for (const name of ['', 'page.css', 'page.js', 'icon.svg']) {
    const answer = await fetch(a.url + name);
    bytes += (await answer.arrayBuffer()).byteLength;
    assert.equal(answer.status, 200);
    const csp = answer.headers.get('content-security-policy');
    assert.match(csp, /default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'/);
    assert.match(csp, /frame-ancestors 'none'/);
    assert.doesNotMatch(csp, /unsafe|\*|https?:/);
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    assert.equal(answer.headers.get('referrer-policy'), 'no-referrer');
    assert.equal(answer.headers.get('cache-control'), 'no-store');
  }
  assert.ok(bytes < 100_000, `${bytes} bytes`);
});

await test('what is shown is what was asked and what /metrics says', async () => {
  const { counts } = traffic;
  let paused;
  const pause = async () => { await traffic.pause(); paused = Date.now() / 1000; };
  await until('much was asked', () => counts.check?.blocked > 200 && counts.trial?.allowed > 100);
  await pause();
  // Each agent is asked while it answers, so the last requests of a policy may be shown later than
  // those of another.
  await shows('api', async () => assert.deepEqual(await sums(page, 'api'), { ...counts.check, would: 0 }));
  await shows('login', async () => assert.deepEqual(await sums(page, 'login'), { ...counts.login, would: 0 }));
  await shows('trial', async () => {
    const trial = await sums(page, 'trial');
    assert.deepEqual([trial.allowed + trial.would, trial.blocked], [counts.trial.allowed, 0]);
    assert.ok(trial.would > 50, `${trial.would} would be blocked`);
  });
  // Of the five requests that pass for each of two clients, the trial would block three.
  await shows('the trial of login', async () => {
    assert.deepEqual(await sums(page, 'login.observe'), { allowed: 4, blocked: 0, would: 6 });
    assert.match(await text(page, '[data-policy="login.observe"] .nums'), new RegExp(`, ${counts.login.blocked.toLocaleString('en')} denied by both$`));
  });
  for (const [outcome, n] of [['allowed', counts.check.allowed], ['blocked', counts.check.blocked]]) {
    let metrics = 0;
    for (const agent of [a, b]) metrics += await agent.metric('gcra_decisions_total', ['policy="api"', `outcome="${outcome}"`]);
    assert.equal(metrics, n, outcome);
  }
  // The history counts each request once. Only the first slot may lack some: it was not whole.
  const asked = () => counts.check.allowed + counts.check.blocked;
  const history = async () => {
    const past = await a.json('history'), api = past.policies.filter((p) => p.name === 'api');
    const slots = past.agents.map((_, i) => api.reduce((sum, p) => sum + p.allowed[i] + p.blocked[i], 0));
    const latest = past.start_seconds + (slots.length - 1) * past.step_seconds;
    return latest > paused && past.agents.at(-1) === 2 && { past, all: slots.reduce((x, y) => x + y, 0) };
  };
  const first = await until('a slot after the pause is over', history), before = asked();
  assert.ok(first.all <= before, `${first.all} of ${before}`);
  traffic.go();
  await until('more was asked', () => asked() > before + 500);
  await pause();
  const { past } = await until('another one is over, and all are counted', async () => {
    const now = await history();
    assert.ok(!now || now.all - first.all <= asked() - before, `${now.all - first.all} of ${asked() - before}`);
    return now.all - first.all === asked() - before && now;
  });
  assert.equal(past.step_seconds, 2);
  assert.ok(Math.abs(past.start_seconds + past.agents.length * 2 - Date.now() / 1000) < 60, 'it ends now');
  traffic.go();
});

await test('who is blocked, with the waits', async () => {
  let rows = [];
  const row = await until('the hostile client is listed', async () => {
    rows = await page.locator('#l-blocked tbody tr').allInnerTexts();
    return rows.find((row) => row.includes('<scr…')) && rows.some((row) => /^192\.0\.2\.7\s+api/.test(row))
      && rows.find((row) => row.includes('<scr…'));
  });
  // 5 an hour: the next one is allowed in 12 minutes at most.
  assert.match(row, /login[\s\S]*\b\d+ (min|s)$/);
  await until('the trial has its client', async () => (await text(page, '#l-would tbody')).replace(/\s+/g, ' ').includes(`192.0.2.8 (${called}) trial`));
  assert.equal(await page.locator('#l-would img').count(), 0);
  assert.equal(await page.locator('#l-blocked script').count(), 0);
  await shows('both agents', async () => assert.match(await text(page, '#state'), /^2 agents; this one serving, up \d+ (s|min)$/));
});

await test('the plots are drawn and can be read with the keyboard', async () => {
  const plot = page.locator('#p-traffic svg');
  for (const css of ['s-allowed', 's-blocked', 's-would']) {
    await until(`${css} is drawn`, async () => (await page.locator(`#p-traffic .${css}`).getAttribute('d')).length > 50);
  }
  await plot.focus();
  await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('ArrowLeft');
  await until('the cursor stands on requests', async () => {
    // In one reading, because the words change every two seconds.
    const [words, readout] = await page.evaluate(() => ['svg', '.readout'].map((part) => document.querySelector(`#p-traffic ${part}`)).map((e) => e.getAttribute('aria-valuetext') ?? e.innerText));
    assert.equal(readout, words);
    return /^\d\d:\d\d:\d\d [\d.]+\/s blocked, [\d.]+\/s would block, [\d.]+\/s allowed/.test(words);
  });
  await page.keyboard.press('Escape');
  await page.locator('#p-traffic summary').click();
  // A browser says later that something was opened.
  await until('the table is filled', async () => await page.locator('#p-traffic tbody tr').count() >= 2);
  await page.locator('#p-traffic summary').click();
  // The percentiles of a minute are those of all its requests.
  await page.locator('#p-latency summary').click();
  assert.match(await text(page, '#p-latency caption'), /of all requests of each minute/);
  await traffic.pause();
  await sleep(4500);
  await until('the table has the percentile of all', async () => {
    const past = await a.json('history'), sums = [];
    past.latency.slice(-30).forEach((slot) => slot.forEach((n, i) => { sums[i] = (sums[i] ?? 0) + n; }));
    const all = sums.reduce((x, y) => x + (y ?? 0), 0);
    let sum = 0, half = 0;
    while (sum + (sums[half] ?? 0) < all / 2) sum += sums[half++] ?? 0;
    const micros = 2 ** half, words = micros < 1000 ? `${micros} µs` : '';
    const cell = await page.locator('#p-latency tbody tr >> nth=0').locator('td >> nth=0').innerText();
    return cell === `≤ ${words}` || !words;
  });
  traffic.go();
  await page.locator('#p-latency summary').click();
});

await test('looking up addresses, keys and mistakes', async () => {
  const look = async (key) => {
    await page.fill('#key', key);
    await page.keyboard.press('Enter');
    return until(`there is an answer about ${key}`, async () => {
      const said = await text(page, '#found');
      return said && !said.includes('waiting') ? said : null;
    });
  };
  await look('198.51.100.250');
  await page.evaluate(() => document.querySelector('#found').replaceChildren());
  const blocked = await look('alice@example.com');
  assert.match(blocked, /login\s+blocked\s+A request now is blocked; the next one is allowed in \d+ (min|s)/);
  assert.match(blocked, /client in logs: alic…\(17\)#/);
  await page.evaluate(() => document.querySelector('#found').replaceChildren());
  assert.match(await look(hostile), /login\s+blocked/);
  assert.equal(await page.locator('#found script').count(), 0);
  for (const [key, sentence] of [['10.0.0.777', /10\.0\.0\.777/], ['alic…(17)#a1b2c3', /shortened name/], ['1,2,3', /3 parts/]]) {
    await page.evaluate(() => document.querySelector('#found').replaceChildren());
    assert.match(await look(key), sentence);
    assert.equal(await page.locator('#found .alert').count(), 1);
  }
  // The client on display is asked about again while it is, and the time is shown.
  await look('alice@example.com');
  const first = await until('the time is shown', async () => {
    const words = await text(page, '#asked');
    return /^alice@example\.com: as of \d\d:\d\d:\d\d$/.test(words) && words;
  });
  const field = await page.evaluate(() => { window.card = document.querySelector('.answer'); return document.activeElement.id; });
  await until('it is asked again', async () => await text(page, '#asked') !== first);
  assert.ok(await page.evaluate(() => window.card.isConnected), 'the card stays, and what is selected in it');
  assert.equal(await page.evaluate(() => document.activeElement.id), field);
  // A name in a list is a button that looks it up.
  await page.mouse.move(5, 5);
  await page.locator('#l-blocked button', { hasText: '192.0.2.7' }).click();
  await until('it is looked up', async () => /limit 'api\.1'/.test(await text(page, '#found')));
  assert.equal(await page.inputValue('#key'), '192.0.2.7');
  // The list stands still under the pointer only.
  await page.locator('#l-blocked').hover();
  await until('the list is held', async () => /held/.test(await text(page, '#n-blocked')));
  await page.mouse.move(5, 5);
  await until('the list goes on', async () => /^(about, )?last/.test(await text(page, '#n-blocked')));
});

await test('there is nothing to press without --admin-actions', async () => {
  assert.equal(await page.locator('button:visible', { hasText: '…' }).count(), 0);
  assert.match(await text(page, '#acts'), /off/);
  const answer = await fetch(`${a.url}actions/forgive`, { method: 'POST', body: '{}', headers: { 'content-type': 'application/json' } });
  assert.deepEqual([answer.status, await answer.text()], [403, 'actions are off; start the agent with --admin-actions FILE to allow them\n']);
});

await test('alerts are announced once, and growing numbers are not', async () => {
  // Another alert may take the place of this one.
  await page.evaluate(() => {
    window.news = [];
    new MutationObserver(() => window.news.push(document.querySelector('#news').textContent)).observe(document.querySelector('#news'), { childList: true, characterData: true, subtree: true });
  });
  const announced = () => page.evaluate(() => window.news.filter((words) => words.includes('Messages have no policy.')).length);
  const link = await Spop.connect(a.listen);
  await link.ask('nosuch', [{ ip: '192.0.2.1' }]);
  await until('there is an alert', async () => /Messages have no policy\. 1 message, last at/.test(await text(page, '#alerts')));
  await until('it is announced', announced);
  await link.ask('nosuch', [{ ip: '192.0.2.1' }]);
  await until('the number grows', async () => /2 messages, last at/.test(await text(page, '#alerts')));
  assert.equal(await announced(), 1);
  link.close();
  // It goes ten minutes after the last one.
  await page.evaluate(() => { const now = Date.now; window.later = 0; Date.now = () => now() + window.later; window.later = 11 * 60000; });
  await until('it is gone', async () => !/no policy/.test(await text(page, '#alerts')));
  await page.evaluate(() => { window.later = 0; });
});

await test('clients that are blocked now come first, and all can be shown', async () => {
  const link = await Spop.connect(b.listen);
  // Many with more requests that are free again soon, and one that is blocked for an hour.
  for (let i = 0; i < 18; i++) await link.ask('check', Array(40).fill({ ip: `203.0.113.${i}` }));
  await link.ask('login', Array(6).fill({ user: 'zoe-is-blocked' }));
  const rows = () => page.locator('#l-blocked tbody tr').allInnerTexts();
  await until('it is listed', async () => (await rows()).some((row) => /^zoe.*login/s.test(row)));
  await until('those that are free again come last', async () => {
    const waits = (await rows()).map((row) => /none$/.test(row));
    return waits.length === 12 && waits.every((free, i) => i === 0 || free >= waits[i - 1]) && (await rows()).some((row) => /^zoe/.test(row));
  });
  await until('the heading says how many there are', async () => /^12 of \d+, /.test(await text(page, '#n-blocked')));
  await page.click('#m-blocked');
  // The numbers are estimates under load, so a client with few requests may be missing.
  await until('more are there', async () => (await rows()).length > 12);
  await page.click('#m-blocked');
  await until('and few again', async () => (await rows()).length === 12);
  link.close();
  await page.mouse.move(5, 5);
});

await test('nothing moves by itself', async () => {
  // An alert moves what is below it, for instance one about an agent that answers late.
  await until('there are three seconds without a shift of the layout', async () => {
    await page.evaluate(() => { window.shifts.length = 0; });
    await sleep(3000);
    return await page.evaluate(() => window.shifts.reduce((a, b) => a + b, 0)) < .05;
  });
});

await test('axe finds nothing, in light and in dark', async () => {
  await accessible(page);
  await page.screenshot({ path: path.join(pictures, 'light.png'), fullPage: true });
  await page.emulateMedia({ colorScheme: 'dark' });
  await accessible(page);
  await page.screenshot({ path: path.join(pictures, 'dark.png'), fullPage: true });
  await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' });
  assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
});

await test('without JavaScript there is a sentence and nothing dead', async () => {
  const context = await browser.newContext({ javaScriptEnabled: false, viewport: { width: 800, height: 400 } });
  const bare = await context.newPage();
  await bare.goto(a.url);
  assert.match(await bare.locator('.alert.off').innerText(), /This page draws with JavaScript/);
  assert.equal(await bare.locator('main').isVisible(), false);
  assert.ok((await bare.locator('.alert.off').boundingBox()).x > 8);
  await bare.screenshot({ path: path.join(pictures, 'bare.png') });
  await context.close();
});

await test('a phone shows all of it without scrolling sideways', async () => {
  const phone = await open('phone', b.url, { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, colorScheme: 'dark' });
  await phone.fill('#key', '192.0.2.7');
  await phone.click('#look button');
  await phone.waitForSelector('.answer');
  assert.equal(await phone.evaluate(() => document.scrollingElement.scrollWidth), 360);
  assert.deepEqual(await sticksOut(phone), []);
  // Nor does a word stick out of its cell.
  assert.deepEqual(await phone.evaluate(() => [...document.querySelectorAll('th, td')].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)), []);
  assert.equal(await phone.locator('#l-allowed th >> nth=2').isVisible(), false, 'a rate beside a total');
  await accessible(phone);
  await phone.screenshot({ path: path.join(pictures, 'phone.png'), fullPage: true });
  await phone.context().close();
  delete pages.phone;
});

await test('an agent that is started again leaves a mark and no wrong number', async () => {
  await traffic.pause();
  const before = await sums(page, 'api');
  await b.stop();
  await until('one agent is left', async () => /^1 agent,/.test(await text(page, '#state')));
  await b.begin();
  await until('there are two again', async () => /^2 agents;/.test(await text(page, '#state')));
  // Each agent has its own time, and the lists are of both.
  await until('the times are named', async () => /last \d+ to \d+ s, by agent$/.test(await text(page, '#n-blocked')));
  await until('it is marked', async () => (await page.locator('#p-traffic .gap').getAttribute('d')).length > 0);
  // The sums are those of the agents that there are, and no rate is negative.
  assert.ok((await sums(page, 'api')).allowed < before.allowed);
  traffic.go();
  assert.doesNotMatch(await text(page, '.tiles'), /[-−]\d/);
});

await test('the page notices that its agent is gone, and goes on when it is back', async () => {
  const killed = a.child.pid;
  await a.stop('SIGKILL');
  await page.waitForSelector('.link[data-state=lost]');
  assert.match(await text(page, '#alerts'), /does not answer/);
  await sleep(2500);
  await a.begin();
  await page.waitForSelector('.link[data-state=live]');
  await until('the new slots are drawn behind a gap', async () => {
    const path = await page.locator('#p-traffic .s-allowed').getAttribute('d');
    return path.split('M').length > 2 || (await page.locator('#p-traffic .gap').getAttribute('d')).length > 0;
  });
  await until('the only alert names it', async () => new RegExp(`^Agent ${killed} was killed, or has crashed\\. Its last sign of life was .* ago\\.$`).test(await text(page, '#alerts')));
  await until('the start is among the events', async () => /opened with the buckets in it/.test(await text(page, '#events')));
});

await test('a table that is resized', async () => {
  await until('the page has the size', async () => /16\.4K/.test(await text(page, '#t-slots')));
  const { status, text: said } = run(program, ['table', 'resize', '--table', path.join(directory, 'table'), '--slots', '65536']);
  assert.equal(status, 0, said);
  await until('the page has the new size', async () => /65\.5K/.test(await text(page, '#t-slots')));
  await until('the event is shown', async () => /the table was resized; it now has 65536 slots/.test(await text(page, '#events')));
});

await test('a file with a mistake, and one that is right again', async () => {
  const right = fs.readFileSync(config, 'utf8');
  fs.writeFileSync(config, right.replace('5/h burst 5', 'five'));
  a.child.kill('SIGHUP');
  await until('the refusal is shown', async () => /A configuration was refused; see the events\. 1 time, last at \d\d:/.test(await text(page, '#alerts')));
  await page.locator('#only-warnings').check();
  await until('the refusal is among the events', async () => /error.*was refused; the policies in force have not changed/.test(await text(page, '#events')));
  fs.writeFileSync(config, right.replace('5/h burst 5', '6/h burst 6'));
  a.child.kill('SIGHUP');
  await until('the other limits are shown', async () => /has other limits than this one/.test(await text(page, '#alerts')));
  await until('the new limit is in words', async () => /6 per hour, up to 6 at once/.test(await text(page, '[data-policy=login]')));
  b.child.kill('SIGHUP');
  await until('all agree', async () => !/other limits/.test(await text(page, '#alerts')));
  await page.locator('#only-warnings').uncheck();
});

await test('two thousand viewers that never read hurt nobody', async () => {
  const [host, to] = a.admin.split(':'), stuck = [];
  for (let i = 0; i < 2000; i++) {
    const socket = net.connect({ host, port: Number(to) });
    socket.on('error', () => {});
    socket.pause();
    socket.write('GET /live?all HTTP/1.1\r\nHost: localhost\r\n\r\n');
    stuck.push(socket);
    if (i % 200 === 199) await sleep(20);
  }
  const before = await sums(page, 'api');
  await until('the page goes on', async () => (await sums(page, 'api')).allowed > before.allowed + 20);
  await until('few files are open', () => fs.readdirSync(`/proc/${a.child.pid}/fd`).length < 100);
  const rss = Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${a.child.pid}/status`, 'utf8'))[1]);
  assert.ok(rss < 200_000, `${rss} KiB`);
  stuck.forEach((socket) => socket.destroy());
  await page.waitForSelector('.link[data-state=live]');
});

await test('whatever an agent says is only text', async () => {
  const evil = '<img src=x onerror="alert(1)"><b>&amp;';
  const bad = await browser.newContext().then((context) => context.newPage());
  pages.evil = bad;
  await bad.addInitScript(() => { window.alert = () => { window.called = true; }; });
  const spoil = (value) => typeof value === 'string' ? evil : Array.isArray(value) ? value.map(spoil)
    : value && typeof value === 'object' ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, spoil(v)])) : value;
  for (const url of ['**/live*', '**/explain*']) {
    await bad.route(url, async (route) => {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: spoil(await answer.json()) });
    });
  }
  await bad.goto(a.url);
  await bad.waitForSelector('.link[data-state=live]');
  await bad.fill('#key', '192.0.2.7');
  await bad.click('#look button');
  await bad.waitForSelector('.answer');
  assert.ok((await bad.locator('body').innerText()).includes(evil));
  assert.equal(await bad.locator('img, body b:not(dd b)').count(), 0);
  assert.equal(await bad.evaluate(() => window.called), undefined);
  await bad.context().close();
  delete pages.evil;
});
assert.deepEqual(await page.evaluate(() => window.violations), [], 'violations of the CSP');
await page.context().close();
delete pages.wide;
await traffic.stop();
await a.stop();
await b.stop();

// Actions, on a table of their own.
const secret = file('token', `${token}\n`);
const c = await Agent.start(program, args('acting', '--admin', '127.0.0.1:0', '--admin-actions', secret));
const d = await Agent.start(program, args('acting', '--admin', '127.0.0.1:0', '--admin-actions', secret));
const more = new Traffic([c, d], plan);
const acting = await open('acting', c.url);
const post = (action, body, headers = {}) => fetch(`${c.url}actions/${action}`, { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json', authorization: `Bearer ${token}`, ...headers } });

await test('an action needs the token, the right type and the page itself', async () => {
  const body = { key: '192.0.2.7' };
  for (const [status, headers] of [
    [401, { authorization: 'Bearer wrong-wrong-wrong-wrong' }], [401, { authorization: '' }], [401, { authorization: token }],
    [415, { 'content-type': 'text/plain' }], [403, { origin: 'http://evil.example' }], [403, { origin: 'null' }],
    [403, { 'sec-fetch-site': 'cross-site' }], [200, { origin: c.url.slice(0, -1), 'sec-fetch-site': 'same-origin' }],
  ]) assert.equal((await post('forgive', body, headers)).status, status, JSON.stringify(headers));
  assert.equal((await fetch(`${c.url}actions/forgive`)).status, 405);
  assert.equal((await post('forgive', {})).status, 400);
  assert.equal((await post('forgive', { key: '192.0.2.7', other: 1 })).status, 400);
  assert.equal((await post('forgive', { key: 'x'.repeat(9000) })).status, 400);
  assert.equal((await post('exempt', { key: '192.0.2.7', for_seconds: 1 })).status, 422);
  assert.equal((await post('observe', { policy: 'nosuch' })).status, 422);
  const rebound = await new Promise((resolve) => {
    const socket = net.connect({ host: '127.0.0.1', port: Number(c.admin.split(':')[1]) });
    socket.write(`POST /actions/forgive HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}`);
    socket.on('data', (data) => resolve(String(data)));
  });
  assert.match(rebound, /^HTTP\/1\.1 421 /);
});

await test('a client is forgiven and exempt', async () => {
  await until('it is blocked', async () => /alic…/.test(await text(acting, '#l-blocked tbody')));
  await acting.fill('#key', 'alice@example.com');
  await acting.click('#look button');
  const login = acting.locator('.answer').filter({ hasText: 'blocked' }).first();
  await login.locator('button', { hasText: 'Exempt for an hour' }).click();
  await acting.fill('#token', 'not the right token at all');
  await acting.click('#ask-yes');
  // The dialog stays, and says it to a person.
  await until('the token is refused', async () => /^This is not the token of this agent, so nothing was done/.test(await text(acting, '#ask-wrong')));
  await acting.screenshot({ path: path.join(pictures, 'wrong-token.png') });
  assert.equal(await text(acting, '#done'), '');
  await acting.fill('#token', token);
  await accessible(acting);
  await acting.screenshot({ path: path.join(pictures, 'dialog.png') });
  await acting.click('#ask-yes');
  await until('it is done', async () => /exempt for 1h, until/.test(await text(acting, '#done')));
  await until('it is listed', async () => /alic….*login\s+exempt\s.*(60|59) min/.test(await text(acting, '#orders tbody')));
  await until('it is logged', () => /exempt for 1h, until .* UTC: an action of --admin by 127\.0\.0\.1/.test(c.log));
  await until('it is so', async () => /exempt/.test(await text(acting, '.answer >> nth=0')));
  await acting.locator('.answer button', { hasText: 'End its exemption' }).first().click();
  await acting.click('#ask-yes');
  await until('it has ended', async () => /no longer exempt/.test(await text(acting, '#done')));
  await acting.locator('.answer button', { hasText: 'Block for an hour' }).first().click();
  await acting.fill('#giver', 'anna');
  await acting.fill('#note', 'too many logins');
  await acting.screenshot({ path: path.join(pictures, 'order.png') });
  await acting.click('#ask-yes');
  await until('it is blocked', async () => /blocked for 1h, until/.test(await text(acting, '#done')));
  await until('it is listed', async () => /alic….*login\s+blocked\s+anna, since .*: too many logins\s.*(60|59) min/.test(await text(acting, '#orders tbody')));
  // The table is narrow, and the state is one word.
  assert.equal(await acting.locator('#orders td >> nth=2').evaluate((cell) => getComputedStyle(cell).whiteSpace), 'nowrap');
  await acting.locator('.answer button', { hasText: 'End its block' }).first().click();
  await acting.click('#ask-yes');
  await until('it has ended', async () => /no longer blocked/.test(await text(acting, '#done')));
  await acting.locator('.answer button', { hasText: 'Forgive its debt' }).first().click();
  await acting.click('#ask-yes');
  await until('it is forgiven', async () => /a debt of .* was forgiven/.test(await text(acting, '#done')));
});

await test('a network is blocked, and its block is ended', async () => {
  for (const [wrong, sentence] of [['10.1.2.3/24', /write 10\.1\.2\.0\/24 for the network/], ['10.1.2.0/33', /is not an address or network/]]) {
    await acting.fill('#key', wrong);
    await acting.click('#look button');
    await until(`the page says what is wrong in ${wrong}`, async () => sentence.test(await text(acting, '#found')));
    assert.equal(await acting.locator('.answer').count(), 0);
  }
  await acting.fill('#key', '10.1.2.0/24');
  await acting.click('#look button');
  await acting.locator('.answer button', { hasText: 'Block for an hour' }).click();
  assert.equal(await acting.inputValue('#giver'), 'anna', 'the name stays');
  assert.equal(await acting.inputValue('#note'), '');
  await acting.fill('#giver', '');
  await acting.screenshot({ path: path.join(pictures, 'network.png') });
  await acting.click('#ask-yes');
  await until('it is blocked', async () => /blocked for 1h, until/.test(await text(acting, '#done')));
  await until('it is listed', async () => /10\.1\.2\.0\/24.*blocked\s.*(60|59) min/.test(await text(acting, '#orders tbody')));
  await until('the card says it', async () => /blocked/.test(await text(acting, '.answer .head')));
  await until('it is by the address', async () => /blocked\s+127\.0\.0\.1:\d+@.*, since/.test(await text(acting, '#orders tbody')));
  // An order that is listed leads to its network.
  await acting.setViewportSize({ width: 1280, height: 900 });
  await acting.evaluate(() => document.querySelector('#found').replaceChildren());
  await acting.locator('#orders button', { hasText: '10.1.2.0/24' }).first().click();
  await acting.screenshot({ path: path.join(pictures, 'orders.png'), fullPage: true });
  await acting.locator('.answer button', { hasText: 'End its block' }).click();
  await acting.click('#ask-yes');
  await until('it has ended', async () => /no longer blocked/.test(await text(acting, '#done')));
  await until('the card says it', async () => /no order/.test(await text(acting, '.answer .head')));
});

await test('all clients of a policy are forgiven', async () => {
  await acting.getByRole('button', { name: 'Forgive all clients… policy login', exact: true }).click();
  assert.match(await text(acting, '#ask-text'), /all clients owe under the policy 'login'/);
  assert.equal(await acting.locator('#giver').isVisible(), false, 'a name is for orders');
  await acting.click('#ask-yes');
  await until('it is done', async () => /policy 'login': all clients begin with no debts/.test(await text(acting, '#done')));
  await until('it is logged', () => /policy 'login' was reset by/.test(c.log + d.log));
});

await test('a policy only observes, in all agents, until the next reload', async () => {
  // Each button says which policy it is for.
  for (const name of ['api', 'login']) assert.equal(await acting.getByRole('button', { name: `Only observe… policy ${name}`, exact: true }).count(), 1);
  const card = acting.locator('[data-policy=api]');
  await card.locator('button', { hasText: 'Only observe' }).click();
  await acting.click('#ask-yes');
  // An agent that does not answer within two seconds is not counted, and demanded again.
  await until('it is done', async () => /'api' only observes now.*in [12] of 2 agents/.test(await text(acting, '#done')));
  await until('it is done in both', async () => /in 2 of 2 agents/.test(await text(acting, '#done')) || (await (await post('observe', { policy: 'api' })).json()).whole);
  await until('it is logged', () => /policy 'api' only observes from now on/.test(c.log + d.log));
  await until('it is shown', async () => /observes, by an action/.test(await text(acting, '[data-policy=api] .tag')));
  await until('there is an alert', async () => /Policy 'api' only observes, by an action, in all 2 agents/.test(await text(acting, '#alerts')));
  // Its clients are allowed, so none of them waits.
  await until('none of the clients of the policy waits', async () => {
    const rows = await acting.locator('#l-blocked tbody tr').allInnerTexts();
    return rows.some((row) => /\sapi\s/.test(row)) && rows.every((row) => !/\sapi\s/.test(row) || /none$/.test(row));
  });
  const before = await sums(acting, 'api');
  await until('requests would be blocked', async () => (await sums(acting, 'api')).would > before.would + 20);
  await accessible(acting);
  for (const agent of [c, d]) {
    assert.ok((await agent.json('live')).configuration.policies.find((policy) => policy.name === 'api').observes);
    agent.child.kill('SIGHUP');
  }
  await until('the alert is gone', async () => !/only observes/.test(await text(acting, '#alerts')));
  await until('the file is in force again', async () => (await text(acting, '[data-policy=api] .tag')) === 'blocks');
  // And once more, and back by an action.
  assert.equal((await post('observe', { policy: 'api' })).status, 200);
  const back = await until('it is done in both', async () => {
    const said = await (await post('observe', { policy: 'api', observe: false })).json();
    return said.whole && said;
  });
  assert.match(back.said[0], /^policy 'api' blocks requests again( \(as it did before\))?, in 2 of 2 agents$/);
  assert.equal((await post('observe', { policy: 'trial', observe: false })).status, 422);
  const forged = await fetch(`${c.url}actions/observe?own`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ policy: 'api', at_ns: 1, by: 'x', proof: '00' }) });
  assert.equal(forged.status, 403);
});

await test('no token is in a log, and no key in full', async () => {
  for (const agent of [c, d]) {
    assert.ok(!agent.log.includes(token) && !agent.log.includes('alice@example'), agent.log);
    assert.ok(!JSON.stringify(await agent.json('live?all')).includes('alice@example'));
  }
});

const costs = file('costs.toml', `
[policy.queue]
message = "check"
key = ["ip"]
limits = "6/m burst 5"
max_delay = "30s"

[policy.tokens]
message = "ask"
key = ["user"]
limits = "100/h burst 100"
settle = "answered"
cost = "used"
`);
const e = await Agent.start(program, argsOf(costs, 'costs', '--admin', await port()));
const costly = await open('costs', e.url);

await test('a policy says how many were delayed, and what came of responses', async () => {
  const nums = (policy) => text(costly, `[data-policy="${policy}"] .nums`);
  assert.equal(await nums('queue'), 'since the start: 0 allowed, 0 blocked');
  const link = await Spop.connect(e.listen);
  await link.ask('check', Array(9).fill({ ip: '192.0.2.7' }));
  await link.ask('ask', Array(3).fill({ user: 'alice' }));
  await link.ask('answered', [{ user: 'alice', used: '7' }, { user: 'alice', used: '0' }, { user: 'alice' }]);
  link.close();
  const queue = 'since the start: 8 allowed (3 of these delayed), 1 blocked';
  await until('the delays are shown', async () => (await nums('queue')) === queue);
  const tokens = 'since the start: 3 allowed, 0 blocked; responses: 1 charged more, 1 as reserved, 1 without a cost';
  await until('the responses are shown', async () => (await nums('tokens')) === tokens);
  await accessible(costly);
  await costly.screenshot({ path: path.join(pictures, 'costs.png'), fullPage: true });
});
assert.deepEqual(await acting.evaluate(() => window.violations), [], 'violations of the CSP');
assert.deepEqual(complaints, [], 'errors of the page');
const ours = [a, b, c, d, e].map((agent) => agent.url);
assert.deepEqual(requests.filter((url) => !ours.some((our) => url.startsWith(our))), [], 'requests to others');

await more.stop();
const version = browser.version();
await browser.close();
console.log(`${tests} passed, 0 failed: the live page in Chromium ${version} with 2 agents: ${requests.length} requests, none to others, no CSP violation, axe-core in light, dark and at 360 px, restarts, a resize, actions (${Math.round((Date.now() - began) / 1000)} s)`);
finish(0);
