// The live page. It asks the agent for /live every two seconds, keeps the slots of the last ten
// minutes, and shows them. Whatever comes from outside (names of clients and policies, lines of
// the log) is only ever set as text.

const EVERY = 2000, PATIENCE = 6000, MOST_EVENTS = 400, NOW_SLOTS = 2;
// How many slots are on display: two, five or ten minutes, as there are.
const WIDTHS = [60, 150, 300];
let WIDTH = WIDTHS[0];
const $ = (id) => document.getElementById(id);

// Only what has changed, so that nothing flickers and no selection is lost.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Numbers and times in words.
const number = new Intl.NumberFormat('en', { maximumFractionDigits: 0 }).format;
const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat('en', { maximumSignificantDigits: 3, notation: 'compact' });
function rate(n) {
  if (n === null || !isFinite(n)) return '–';
  if (n === 0) return '0';
  if (n < 0.01) return '<0.01';
  return n >= 100000 ? compact.format(n) : n >= 100 ? number(n) : short.format(n);
}
function time(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms === 0) return '0';
  // As the commands and the log write it: rounded up, and a unit from two of it on.
  const [unit, of] = UNITS.find(([, of]) => ms >= 2 * of) ?? UNITS.at(-1);
  const tenths = Math.ceil(ms / of * 10);
  return `${tenths < 100 ? (tenths / 10).toFixed(1) : Math.ceil(ms / of)} ${unit}`;
}
const UNITS = [['d', 864e5], ['h', 36e5], ['min', 6e4], ['s', 1000], ['ms', 1]];
function up({ uptime_seconds: seconds }) {
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}
function micros(us) {
  if (us < 1000) return `${short.format(us)} µs`;
  return us < 1e6 ? `${short.format(us / 1000)} ms` : `${short.format(us / 1e6)} s`;
}
const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const day = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short' });
const at = (ms) => clock.format(new Date(ms));

// Everything that is known. A slot that the agent no longer knows, because it was restarted, stays.
const known = { slots: new Map(), step: 2, last: -1, lastAt: 0, agents: 1, events: new Map() };
let live = null, heard = 0, actions = false, token = '', started = null, needsAll = true;

const isTrial = (name) => name.endsWith('.observe');
function learn(answer) {
  const { history } = answer;
  const { first, policies } = history;
  const end = first + history.agents.length;
  // The machine was started anew.
  if (known.last > end + 10) { known.slots.clear(); known.last = -1; }
  history.agents.forEach((agents, i) => {
    const had = known.slots.get(first + i);
    if (agents === 0 || (had && had.agents > agents)) return;
    const slot = { agents, notifies: history.notifies[i], latency: history.latency[i], unmatched: history.unmatched[i], all: [0, 0, 0, 0], of: new Map() };
    for (const p of policies) {
      const fresh = p.newly_blocked[i], four = [p.allowed[i], p.would_block[i], p.blocked[i], p.undecided[i]];
      // The rest of what a trial would block is what its policy has denied as well.
      if (isTrial(p.name)) four.splice(1, 2, fresh, four[1] - fresh);
      else four.forEach((n, k) => { slot.all[k] += n; });
      if (four.some((n) => n > 0)) slot.of.set(p.name, four);
    }
    // The requests that a trial would block in addition are among those that its policy has allowed.
    for (const p of policies) {
      const would = Math.min(p.newly_blocked[i], slot.all[0]);
      slot.all[0] -= would;
      slot.all[1] += would;
    }
    known.slots.set(first + i, slot);
  });
  if (history.agents.length > 0) {
    known.step = history.step_seconds;
    known.last = Math.max(known.last, end - 1);
    known.lastAt = (history.start_seconds + history.agents.length * history.step_seconds) * 1000;
  }
  for (const number of known.slots.keys()) if (number <= known.last - 2 * WIDTHS.at(-1)) known.slots.delete(number);
  for (const event of answer.events) known.events.set(`${event.pid} ${event.number} ${event.at_ms}`, event);
  if (known.events.size > MOST_EVENTS) {
    const old = [...known.events].sort((a, b) => a[1].at_ms - b[1].at_ms);
    for (const [id] of old.slice(0, known.events.size - MOST_EVENTS)) known.events.delete(id);
  }
  known.agents = answer.status.together.agents;
}

// The slots on display, the latest last; null where nothing is known.
function shown() {
  const late = heard ? Math.max(0, Math.floor((performance.now() - heard) / 1000 / known.step) - 1) : 0;
  const end = known.last + late;
  const first = Math.min(...known.slots.keys());
  WIDTH = WIDTHS.find((width) => first > end - width) ?? WIDTHS.at(-1);
  return Array.from({ length: WIDTH }, (_, i) => known.slots.get(end - WIDTH + 1 + i) ?? null);
}
function latest(read) {
  const last = [];
  for (let n = known.last; n > known.last - NOW_SLOTS; n--) if (known.slots.has(n)) last.push(known.slots.get(n));
  return last.length ? sum(last.map(read)) / last.length / known.step : null;
}
function quantile(buckets, part) {
  const all = sum(buckets);
  if (!all) return null;
  let seen = 0;
  for (let i = 0; i < buckets.length; i++) {
    seen += buckets[i];
    // The same rule as that of `gcra-spoa top`.
    if (seen >= part * all) return 2 ** i;
  }
  return null;
}

// A plot over the last ten minutes. `series` are areas on top of each other, or lines.
class Plot {
  constructor(box, title, { series, lines = false, height = 190, small = false, of }) {
    Object.assign(this, { box, title, series, lines, height, small, of, top: 0, cursor: null, data: [] });
    this.svg = svg('svg', { role: 'slider', tabindex: 0, 'aria-label': `${title}, the last minutes`, 'aria-valuemin': 0, 'aria-valuemax': WIDTH - 1, 'aria-valuenow': WIDTH - 1, 'aria-valuetext': 'nothing yet', 'aria-orientation': 'horizontal', height });
    this.parts = {};
    for (const name of ['gaps', 'grid', 'areas', 'over']) this.svg.append(this.parts[name] = svg('g'));
    this.paths = series.map(({ css }) => {
      const path = svg('path', { class: css });
      this.parts.areas.append(path);
      return path;
    });
    this.gap = svg('path', { class: 'gap' });
    this.parts.gaps.append(this.gap);
    this.readout = html('p', { class: 'readout' });
    box.append(this.svg, this.readout);
    if (!small) {
      this.rows = html('tbody');
      this.details = html('details', { toggle: () => this.fillTable() }, html('summary', 'As a table'),
        html('table', html('caption', { class: 'hint' }, `${title}: ${of ? 'of all requests of each minute' : 'averages of each minute'}`),
          html('thead', html('tr', html('th', { scope: 'col' }, 'Minute from'), series.map((s) => html('th', { scope: 'col', class: 'num' }, s.name)))), this.rows));
      box.append(this.details);
    }
    const point = (event) => {
      const { left } = this.svg.getBoundingClientRect();
      this.move(Math.floor((event.clientX - left - this.left) / this.step));
    };
    this.svg.addEventListener('pointermove', point);
    this.svg.addEventListener('pointerdown', point);
    this.svg.addEventListener('pointerleave', () => this.move(null));
    this.svg.addEventListener('blur', () => this.move(null));
    this.svg.addEventListener('keydown', (event) => {
      const from = this.cursor ?? WIDTH - 1;
      const to = { ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 30, PageDown: from + 30, Home: 0, End: WIDTH - 1 }[event.key];
      if (event.key === 'Escape') this.move(null);
      else if (to === undefined) return;
      else this.move(to);
      event.preventDefault();
    });
    this.width = 0;
    new ResizeObserver(() => {
      const width = Math.floor(box.clientWidth);
      if (width && width !== this.width) { this.width = width; this.draw(); }
    }).observe(box);
  }
  // `values(slot)` are the numbers of a slot, one for each series.
  update(slots, values) {
    this.slots = slots;
    this.data = slots.map((slot) => slot && values(slot));
    mark(this.svg, 'aria-valuemax', WIDTH - 1);
    if (this.cursor >= WIDTH) this.cursor = null;
    if (this.width) this.draw();
    this.fillTable();
  }
  scale() {
    const highest = Math.max(...this.data.map((v) => v ? (this.lines ? Math.max(...v.map((n) => n ?? 0)) : sum(v)) : 0));
    if (this.lines) return Math.max(10, Math.ceil(Math.log2(Math.max(1, highest)) / 2) * 2);
    const power = 10 ** Math.floor(Math.log10(Math.max(highest, 1)));
    const next = [1, 2, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= highest);
    // It shrinks only if much of the plot would be empty, so that it does not jump.
    return next > this.top || highest < this.top * .35 ? next : this.top;
  }
  draw() {
    const { width, height } = this;
    this.left = this.small ? 34 : 46;
    const bottom = 18, high = height - bottom - 8, wide = width - this.left - 2;
    this.step = wide / WIDTH;
    this.top = this.scale();
    mark(this.svg, 'viewBox', `0 0 ${width} ${height}`);
    const x = (i) => (this.left + i * this.step).toFixed(1);
    const y = this.lines
      ? (us) => (8 + high - Math.min(1, Math.log2(Math.max(1, us)) / this.top) * high).toFixed(1)
      : (n) => (8 + high - n / this.top * high).toFixed(1);
    const grid = [];
    const line = (value, label) => {
      grid.push(svg('line', { class: 'grid', x1: this.left, x2: width - 2, y1: y(value), y2: y(value) }));
      grid.push(svg('text', { x: this.left - 6, y: +y(value) + 4, 'text-anchor': 'end' }, label));
    };
    if (this.lines) for (let p = 0; p <= this.top; p += this.top > 12 ? 6 : 5) line(2 ** p, micros(p >= 20 ? 1e6 : p >= 10 ? 1000 * 2 ** (p - 10) : 2 ** p));
    else for (const part of this.small ? [0, 1] : [0, .5, 1]) line(this.top * part, compact.format(this.top * part));
    const all = WIDTH * known.step / 60, marks = width < 520 ? 2 : all === 5 ? 5 : 4;
    for (let n = marks; n > 0; n--) {
      const m = all * n / marks;
      const label = m < 2 && m % 1 ? `−${m * 60} s` : `−${m} min`;
      grid.push(svg('text', { x: x(WIDTH - m * 60 / known.step), y: height - 3, 'text-anchor': n === marks ? 'start' : 'middle' }, label));
    }
    grid.push(svg('text', { x: width - 2, y: height - 3, 'text-anchor': 'end' }, 'now'));
    if (this.data.every((v) => !v)) grid.push(svg('text', { class: 'none', x: width / 2, y: height / 2 }, 'nothing counted yet'));
    this.parts.grid.replaceChildren(...grid);
    // Where agents are missing that are here now.
    let gaps = '';
    (this.slots ?? []).forEach((slot, i) => {
      if (slot && slot.agents < known.agents) gaps += `M${x(i)} 8H${x(i + 1)}V${8 + high}H${x(i)}z`;
    });
    mark(this.gap, 'd', gaps);
    this.paths.forEach((path, s) => mark(path, 'd', this.lines ? this.linePath(s, x, y) : this.areaPath(s, x, y)));
    this.drawCursor();
  }
  areaPath(s, x, y) {
    const below = (v) => sum(v.slice(0, s));
    let path = '';
    for (let i = 0; i < WIDTH;) {
      if (!this.data[i] || !this.data[i][s]) { i++; continue; }
      let from = i, up = '', down = '';
      while (i < WIDTH && this.data[i] && this.data[i][s]) {
        const low = below(this.data[i]);
        up += `${i === from ? 'M' : 'L'}${x(i)} ${y(low + this.data[i][s])}H${x(i + 1)}`;
        down = `L${x(i + 1)} ${y(low)}H${x(i)}` + down;
        i++;
      }
      path += `${up}${down}z`;
    }
    return path;
  }
  linePath(s, x, y) {
    let path = '', pen = 'M';
    this.data.forEach((v, i) => {
      if (!v || v[s] === null) { pen = 'M'; return; }
      path += `${pen}${x(i)} ${y(v[s])}H${x(i + 1)}`;
      pen = 'L';
    });
    return path;
  }
  move(to) {
    this.cursor = to === null ? null : Math.max(0, Math.min(WIDTH - 1, to));
    this.drawCursor();
  }
  words(i) {
    const v = this.data[i], slot = this.slots?.[i];
    if (!v) return 'nothing is known';
    const numbers = this.series.map((s, n) => v[n] === null ? null : `${s.show(v[n])} ${s.name}`).filter(Boolean);
    if (slot.agents < known.agents) numbers.push(`by ${slot.agents} of ${known.agents} agents`);
    return numbers.join(', ') || 'no requests';
  }
  drawCursor() {
    const i = this.cursor ?? WIDTH - 1;
    const when = known.lastAt - (WIDTH - 1 - i) * known.step * 1000 - known.step * 1000;
    const words = `${known.lastAt ? at(when) : ''} ${this.words(i)}`.trim();
    const over = [];
    if (this.cursor !== null) {
      const x = this.left + (i + .5) * this.step;
      over.push(svg('line', { class: 'cursor', x1: x, x2: x, y1: 6, y2: this.height - 18 }));
    }
    this.parts.over.replaceChildren(...over);
    say(this.readout, this.cursor === null ? '' : words);
    // The time changes with each look; without a cursor that would only be noise.
    if (this.cursor !== null || document.activeElement !== this.svg) {
      mark(this.svg, 'aria-valuenow', i);
      mark(this.svg, 'aria-valuetext', words);
    }
  }
  fillTable() {
    if (!this.details?.open) return;
    const per = 60 / known.step, rows = [];
    for (let from = WIDTH - per; from >= 0; from -= per) {
      const part = this.data.slice(from, from + per).filter(Boolean);
      const whole = this.of?.(this.slots.slice(from, from + per).filter(Boolean));
      const cell = (s, n) => {
        const value = whole ? whole[n] : part.length ? sum(part.map((v) => v[n])) / part.length : null;
        return value === null ? '–' : s.show(value);
      };
      rows.push(html('tr', html('th', { scope: 'row' }, at(known.lastAt - (WIDTH - from) * known.step * 1000)), this.series.map((s, n) => html('td', { class: 'num' }, cell(s, n)))));
    }
    this.rows.replaceChildren(...rows);
  }
}

const perSecond = (n) => `${rate(n)}/s`;
const AREAS = [
  { name: 'blocked', css: 's-blocked', show: perSecond },
  { name: 'would block', css: 's-would', show: perSecond },
  { name: 'allowed', css: 's-allowed', show: perSecond },
];
// The requests of a trial: what its policy has denied, too, is not what the trial would change.
const TRIAL = [{ ...AREAS[0], name: 'denied by both' }, AREAS[1], AREAS[2]];
const LINES = [
  { name: 'half', css: 'line l-p50', show: (us) => `≤ ${micros(us)}` },
  { name: '99 of 100', css: 'line l-p99', show: (us) => `≤ ${micros(us)}` },
];
// Requests that would be blocked have passed, so they are shown beside those that were allowed.
function areas([allowed, would, blocked]) {
  return [blocked, would, allowed].map((n) => n / known.step);
}
// How long the requests of several slots took: half of them, and 99 of 100.
function times(slots) {
  const sums = [];
  for (const slot of slots) slot.latency.forEach((n, i) => { sums[i] = (sums[i] ?? 0) + n; });
  return [.5, .99].map((part) => quantile(Array.from(sums, (n) => n ?? 0), part));
}
const traffic = new Plot($('p-traffic'), 'Decisions of all policies', { series: AREAS, height: 190 });
const latency = new Plot($('p-latency'), 'Time to answer', { series: LINES, lines: true, height: 110, of: times });

// A number that has grown since the start is told for ten minutes after it has grown last.
const LATELY = 600000, grown = new Map();
// Since when it has not grown, in words; null if that is long. `last` is when it did, if a slot or
// an event has told it.
function lately(what, n, last = null) {
  const it = grown.get(what), now = Date.now();
  if (!n) grown.delete(what);
  else if (!it) grown.set(what, { n, last, since: now });
  else { if (n > it.n) it.last = now; else it.last = Math.max(it.last ?? 0, last ?? 0) || null; it.n = n; }
  const { last: when, since } = grown.get(what) ?? {};
  if (!n || now - (when ?? since) > LATELY) return null;
  return when ? `last at ${at(when)}` : 'before this page was opened';
}
function lastSlot(read) {
  const number = Math.max(...[...known.slots].filter(([, slot]) => read(slot) > 0).map(([number]) => number));
  return isFinite(number) ? known.lastAt - (known.last - number) * known.step * 1000 : null;
}
function lastEvent(words) {
  return Math.max(0, ...[...known.events.values()].filter((e) => words.test(e.text)).map((e) => e.at_ms)) || null;
}
// The troubles, most urgent first: how urgent each is, its words, and the numbers in them that grow.
function troubles({ status, configuration }) {
  const out = [], { together } = status;
  const bad = (text, more) => out.push(['bad', text, more]), warn = (text, more) => out.push(['', text, more]);
  const silent = status.agents.filter((agent) => agent.why);
  for (const agent of silent.slice(0, 3)) bad(`Agent ${agent.pid}: ${agent.why}.`);
  if (silent.length > 3) bad(`${count(silent.length - 3, 'more agent does', 'more agents do')} not answer.`);
  const killed = status.killed ?? [];
  for (const { pid, pid_namespace: where, silent_seconds: s } of killed.slice(0, 3)) bad(`Agent ${pid} ${where === 'ours' ? 'was killed, or has crashed' : 'in another container was killed, or stands still'}.`, `Its last sign of life was ${time(s * 1000)} ago.`);
  if (killed.length > 3) bad(`${count(killed.length - 3, 'more agent was', 'more agents were')} killed in the last ten minutes.`);
  const other = status.agents.filter((agent) => agent.same_limits === false);
  if (other.length) bad(`${count(other.length, 'agent has', 'agents have')} other limits than this one (${other.map((a) => a.pid).join(', ')}); compare their flags and files.`);
  const none = Object.entries(together.haproxy_undecided_last_minute).sort(([, a], [, b]) => b - a);
  if (none.length) bad(`Requests had no decision, says HAProxy; ${none.length > 1 ? 'mostly ' : ''}${together.haproxy_undecided_why}.`, `In the last minute: ${none.map(([err, n]) => `${number(n)} with err=${err}`).join(', ')}.`);
  if (together.store && !together.store.up) bad(`The store is away. ${together.store.faults[0] ?? ''}`, together.store.away_seconds && `For ${time(together.store.away_seconds * 1000)}.`);
  if (status.table.detached) bad('The file of the table was removed or replaced: agents that start now use another table.');
  const told = status.agents.flatMap((agent) => agent.status ?? []);
  for (const { name } of together.policies.filter((p) => p.switched)) {
    const n = told.filter((s) => s.policies.some((p) => p.name === name && p.switched)).length;
    const where = n < told.length ? `in ${n} of ${told.length} agents` : told.length > 1 ? `in all ${n} agents` : '';
    warn(`Policy '${name}' only observes, by an action${where && `, ${where}`}: requests over its limits pass until the next reload.`);
  }
  if (status.state === 'leaving') warn('This agent is leaving.');
  const grows = (say, what, n, text, one, many, last) => {
    const when = lately(what, n, last);
    if (when) say(text, `${count(n, one, many)}, ${when}.`);
  };
  grows(bad, 'panics', together.notifies.handler_panics, 'The agent has a fault; please report this.', 'panic', 'panics');
  grows(warn, 'evictions', status.table.evictions, "The table is too small: clients that owed something were forgotten. Give it more slots with 'gcra-spoa table resize'.", 'bucket evicted', 'buckets evicted');
  grows(warn, 'refused', together.config_reloads.refused ?? 0, 'A configuration was refused; see the events.', 'time', 'times', lastEvent(/ was refused; the policies in force| still has the same mistakes/));
  const undecided = sum(together.policies.map((p) => p.decisions.undecided ?? 0));
  grows(warn, 'undecided', undecided, 'Messages get no decision, because a key or a cost is missing or wrong.', 'message', 'messages', lastSlot((slot) => slot.all[3]));
  grows(warn, 'unmatched', together.unmatched, 'Messages have no policy.', 'message', 'messages', lastSlot((slot) => slot.unmatched));
  grows(warn, 'tokens', sum(told.map((s) => s.wrong_tokens ?? 0)), 'Actions were asked for with a wrong token; the log says from where.', 'time', 'times', lastEvent(/token is wrong|wrong tokens? in the last/));
  return out;
}
let announced = [];
function showTroubles(list) {
  const box = $('alerts');
  list.forEach(([kind, text, more], i) => {
    const one = box.children[i] ?? box.appendChild(html('p', html('span'), html('span', { class: 'more' })));
    mark(one, 'class', `alert ${kind}`.trim());
    say(one.children[0], text);
    say(one.children[1], more ? ` ${more}` : '');
  });
  while (box.children.length > list.length) box.lastChild.remove();
  // Numbers in the alerts grow; a screen reader reads only what is new.
  const texts = list.map(([, text]) => text), fresh = texts.filter((text) => !announced.includes(text));
  if (fresh.length) say($('news'), fresh.join(' '));
  else if (!texts.length) say($('news'), '');
  announced = texts;
}

function fillFacts(box, facts) {
  const wanted = facts.filter(([, value]) => value !== null);
  wanted.forEach(([name, value], i) => {
    const dt = box.children[2 * i] ?? box.appendChild(html('dt'));
    const dd = box.children[2 * i + 1] ?? box.appendChild(html('dd'));
    say(dt, name);
    say(dd, value);
  });
  while (box.children.length > 2 * wanted.length) box.lastChild.remove();
}
// Rows of cells: a string, or a function that makes a node, with a string by which it is known.
function fillRows(body, rows, columns, none) {
  if (rows.length === 0 && none) rows = [{ none: true, cells: [none] }];
  rows.forEach((row, r) => {
    const tr = body.children[r] ?? body.appendChild(html('tr'));
    mark(tr, 'class', row.none ? 'none' : '');
    row.cells.forEach((cell, c) => {
      const td = tr.children[c] ?? tr.appendChild(html('td'));
      const { text, css = '', key } = typeof cell === 'string' ? { text: cell } : cell;
      mark(td, 'class', css);
      if (row.none) mark(td, 'colspan', columns); else td.removeAttribute('colspan');
      if (key === undefined) say(td, text);
      else if (td.firstElementChild?.textContent !== text) {
        td.replaceChildren(html('button', { class: 'plain mono', type: 'button', title: 'Look it up', click: () => lookUp(td.dataset.key).then(() => $('look').scrollIntoView({ block: 'nearest' })) }, text));
      }
      if (key !== undefined) td.dataset.key = key; else delete td.dataset.key;
    });
    while (tr.children.length > row.cells.length) tr.lastChild.remove();
  });
  while (body.children.length > rows.length) body.lastChild.remove();
}
// A shortened name leads to no key, so it is no button.
function clientCell(name, known) {
  const text = known ? `${name} (${known})` : name;
  return name.includes('…') || name === '' ? { text: text || '(no key)', css: 'mono' } : { text, key: name };
}
// In a narrow column, the name of a trial is broken at its dot.
const breakable = (name) => name.replace('.', '\u200b.');
// The clients of a list: those that are blocked now, then those that may be, then the others.
const rank = (c) => c.wait_ms || c.reason === 'store' || c.reason === 'denied' || c.reason === 'blocked' ? 0 : c.reason ? 1 : 2;
function clients(together, list) {
  return together.policies.flatMap((policy) => policy[list].map((client) => ({ ...client, policy })))
    .filter((c) => c.requests > 0).sort((a, b) => rank(a) - rank(b) || b.requests - a.requests);
}
// How many requests have passed that a policy would have blocked.
const wouldBlock = (policy) => policy.newly_blocked ?? policy.decisions.would_block ?? 0;
const FEW = 12, whole_lists = new Set();
function cut(id, rows, span) {
  const more = $(`m-${id}`), isWhole = whole_lists.has(id);
  more.hidden = rows.length <= FEW;
  say(more, isWhole ? `Show ${FEW}` : `Show all ${rows.length}`);
  say($(`n-${id}`), rows.length > FEW && !isWhole ? `${FEW} of ${rows.length}, ${span}` : span);
  return isWhole ? rows : rows.slice(0, FEW);
}
for (const id of ['blocked', 'would', 'allowed']) {
  $(`m-${id}`).addEventListener('click', () => {
    if (!whole_lists.delete(id)) whole_lists.add(id);
    if (live) showClients(live.status);
  });
}
function waitCell({ wait_ms: ms, reason }) {
  if (ms) return { text: reason === 'blocked' ? `order, ${time(ms)}` : time(ms), css: 'num' };
  const text = { store: 'no store', denied: 'denied', share: 'look up' }[reason];
  return { text: text ?? 'none', css: text ? 'num' : 'num zero' };
}
// After a touch or a click an element keeps the hover or the focus, and nobody is in it.
const hovers = matchMedia('(hover: hover)');
const held = (table) => (hovers.matches && table.matches(':hover')) || table.querySelector(':focus-visible') !== null;
function showClients({ together, agents }) {
  // Each agent counts in its own minutes, and since its start.
  const all = agents.flatMap(({ status }) => status ? Math.round(status.window_seconds) : []);
  const [from, to] = [Math.min(...all), Math.max(...all)];
  const span = from === to ? `last ${to} s` : `last ${from} to ${to} s, by agent`;
  const about = (which) => together.policies.every((p) => p.top_is_exact[which]) ? span : `about, ${span}`;
  for (const [id, list, which] of [['blocked', 'top_blocked', 'blocked'], ['would', 'top_would_block', 'would_block']]) {
    const rows = clients(together, list);
    if (id === 'would') $('s-would').hidden = rows.length === 0 && !together.policies.some(wouldBlock);
    const table = $(`l-${id}`);
    if (held(table)) { say($(`n-${id}`), 'held while you are in it'); continue; }
    fillRows(table.tBodies[0], cut(id, rows, about(which)).map((c) => ({ cells: [clientCell(c.client, c.known_as), { text: breakable(c.limit ?? c.policy.name), css: 'pol' }, { text: rate(c.per_second), css: 'num' }, { text: number(c.requests), css: 'num' }, waitCell(c)] })), 5, 'none');
  }
  const table = $('l-allowed');
  if (held(table)) return say($('n-allowed'), 'held while you are in it');
  // The requests that a trial allows are among those that its policy has decided about.
  const decided = { policies: together.policies.filter((p) => !isTrial(p.name)) };
  const rows = cut('allowed', clients(decided, 'top_allowed'), about('allowed')).map((c) => {
    const blocked = c.policy.top_blocked.find((other) => other.client === c.client);
    const known = blocked || (c.policy.top_is_exact.blocked && c.policy.top_blocked.length < 20);
    return { cells: [clientCell(c.client, c.known_as), { text: c.policy.name, css: 'pol' }, { text: rate(c.per_second), css: 'num' }, { text: number(c.requests), css: 'num' }, { text: known ? number(blocked?.requests ?? 0) : '–', css: blocked ? 'num' : 'num zero' }] };
  });
  fillRows(table.tBodies[0], rows, 5, 'none');
}

const cards = new Map();
function card(name) {
  if (cards.has(name)) return cards.get(name);
  const it = { title: html('h3', name), tag: html('span', { class: 'tag' }), nums: html('p', { class: 'nums' }), lines: html('ul'), box: html('div', { class: 'plot' }) };
  it.button = html('button', { type: 'button', hidden: '', click: () => switchMode(name, it.observes) });
  it.forgive = html('button', { type: 'button', hidden: '', 'aria-label': `Forgive all clients… policy ${name}`, click: () => forgiveAll(name) }, 'Forgive all clients…');
  it.root = html('article', { class: 'card policy' }, html('div', { class: 'head' }, it.title, it.tag), it.box, it.nums, it.lines, html('p', { class: 'buttons' }, it.button, it.forgive));
  it.root.dataset.policy = name;
  $('policies').append(it.root);
  it.plot = new Plot(it.box, `Decisions of policy ${name}`, { series: isTrial(name) ? TRIAL : AREAS, height: 96, small: true });
  cards.set(name, it);
  return it;
}
// The cost of the responses of a policy with `settle`.
const SETTLED = { charged: 'charged more', given_back: 'gave back', equal: 'as reserved', late: 'too late to give back', no_cost: 'without a cost', no_store: 'without the store' };
function settled(counts) {
  const words = Object.entries(SETTLED).filter(([outcome]) => counts[outcome]).map(([outcome, said]) => `${number(counts[outcome])} ${said}`);
  return words.length ? `; responses: ${words.join(', ')}` : '';
}
function showPolicies({ configuration, status: { together } }, slots) {
  const words = new Map(configuration.policies.map((policy) => [policy.name, policy]));
  const names = [...new Set([...words.keys(), ...together.policies.map((p) => p.name)])];
  for (const name of names) {
    const it = card(name), policy = words.get(name), sums = together.policies.find((p) => p.name === name);
    it.observes = policy?.observes ?? false;
    const mode = policy ? (policy.switched ? 'observes, by an action' : policy.observes ? 'observes' : 'blocks') : isTrial(name) ? 'trial' : 'no longer in force';
    say(it.tag, mode);
    mark(it.tag, 'class', policy && !policy.observes ? 'tag' : 'tag observe');
    const d = sums?.decisions ?? {};
    const more = (n, words) => n ? `, ${number(n)} ${words}` : '';
    const delayed = sums?.delayed ? ` (${number(sums.delayed)} of these delayed)` : '';
    const would = sums ? wouldBlock(sums) : 0;
    const blocked = isTrial(name) ? `${more(would, 'would block')}${more(d.would_block - would, 'denied by both')}` : `, ${number(d.blocked ?? 0)} blocked${more(would, 'would block')}`;
    say(it.nums, `since the start: ${number(d.allowed ?? 0)} allowed${delayed}${blocked}${more(d.undecided, 'undecided')}${settled(sums?.settled ?? {})}`);
    // The first line says the name and the message again.
    const lines = policy ? [policy.lines[0].replace(/^policy '[^']*'(, )?/, ''), ...policy.lines.slice(1)].filter(Boolean) : [];
    lines.forEach((line, i) => say(it.lines.children[i] ?? it.lines.appendChild(html('li')), line));
    while (it.lines.children.length > lines.length) it.lines.lastChild.remove();
    it.button.hidden = !actions || !policy || (policy.observes && !policy.switched);
    it.forgive.hidden = !actions || !policy;
    say(it.button, policy?.switched ? 'Block again…' : 'Only observe…');
    mark(it.button, 'aria-label', `${it.button.textContent} policy ${name}`);
    it.plot.update(slots, (slot) => areas(slot.of.get(name) ?? [0, 0, 0]));
  }
  for (const [name, it] of cards) if (!names.includes(name)) { it.root.remove(); cards.delete(name); }
  configuration.rest.forEach((line, i) => say($('rest').children[i] ?? $('rest').appendChild(html('p', { class: 'hint' })), line));
  while ($('rest').children.length > configuration.rest.length) $('rest').lastChild.remove();
  allOrders = configuration.orders;
  network?.update();
  $('s-orders').hidden = allOrders.length === 0;
  fillRows($('orders').tBodies[0], allOrders.map((o) => ({ cells: [clientCell(o.key), o.policy ?? '–', { text: stateOf(o), css: 'nowrap' }, [`${o.giver}, since ${o.since}`, o.note].filter(Boolean).join(': '), { text: time(o.left_ms), css: 'num' }] })), 5);
}

function showHealth({ status }) {
  const { table, together } = status, { notifies, connections, store } = together;
  const live = table.states.live ?? 0, idle = table.states.idle ?? 0;
  const fill = table.slots ? live / table.slots : 0;
  const percent = (n) => `${n > 0 && n < .001 ? '<0.1' : (n * 100).toFixed(1)} %`;
  say($('t-fill'), percent(fill));
  say($('t-slots'), `of ${compact.format(table.slots)} slots live`);
  $('m-live').style.width = `${fill * 100}%`;
  mark($('meter'), 'aria-valuenow', (fill * 100).toFixed(1));
  mark($('meter'), 'class', fill > .6 ? 'meter full' : 'meter');
  const ended = Object.entries(connections.protocol_errors).filter(([, n]) => n > 0);
  fillFacts($('health'), [
    ['Slots', number(table.slots)],
    ['Live (owe something)', number(live)],
    ['Idle (free for any client)', number(idle)],
    ['Evicted', number(table.evictions)],
    ['Debts forgiven by that', time(table.forgiven_seconds * 1000)],
    ['Connections open', number(connections.open)],
    ['Connections accepted', number(connections.accepted)],
    ['NOTIFYs answered', number(notifies.answered)],
    ['Shed', notifies.shed ? number(notifies.shed) : null],
    ['Overdue', notifies.overdue ? number(notifies.overdue) : null],
    ['Waiting for the store', store ? number(notifies.waiting) : null],
    ['Connections refused', connections.accept_errors ? number(connections.accept_errors) : null],
    ['Protocol errors', ended.length ? ended.map(([s, n]) => `${number(n)} × ${s}`).join(', ') : null],
  ]);
  $('s-store').hidden = !store;
  if (!store) return;
  const answer = store.replies ? micros(store.answer_seconds / store.replies * 1e6) : '–';
  fillFacts($('store'), [
    ['State', store.up ? 'used' : 'AWAY'],
    ['Away, all times (longest of the agents)', time(store.away_seconds_total * 1000)],
    ['Asks', number(store.asks)],
    ['Charges', store.charges ? number(store.charges) : null],
    ['Mean time of a reply', answer],
    ['Requests that wait', number(store.waiting)],
    ['Stopped waiting', number(store.timed_out)],
    ['Cells held', number(store.leases.held_cells)],
    ['Keys with cells', `${number(store.leases.states.in_use ?? 0)} of ${number(store.leases.entries)}`],
    ['Machines seen', store.leases.machines ? number(store.leases.machines) : 'not known'],
    ...store.faults.map((fault) => ['Fault', fault]),
  ]);
}
function showAgents({ status }) {
  fillRows($('agents').tBodies[0], status.agents.map((agent) => {
    const s = agent.status;
    const name = `${agent.pid}${agent.this_agent ? ' (this one)' : ''}${agent.admin ? ` ${agent.admin}` : ''}`;
    const state = agent.same_limits === false ? 'other limits' : s ? s.state : 'no answer';
    return { cells: [name, { text: state, css: state === 'serving' ? 'nowrap' : 'nowrap blocked' }, { text: s ? up(s) : '–', css: 'num' }, { text: s ? number(s.notifies.answered) : '–', css: 'num' }] };
  }), 4);
}
function showEvents(severalAgents) {
  const only = $('only-warnings').checked;
  const all = [], open = new Map();
  for (const e of [...known.events.values()].sort((a, b) => a.at_ms - b.at_ms || a.pid - b.pid || a.number - b.number)) {
    if (only && e.level === 'info') continue;
    // Lines that begin with a space belong to the one before.
    const before = open.get(e.pid);
    if (e.text.startsWith(' ') && before && before.level === e.level) { before.text += `\n${e.text}`; continue; }
    open.set(e.pid, { ...e });
    all.unshift(open.get(e.pid));
  }
  const list = $('events'), signature = `${only} ${severalAgents} ${all.length} ${all[0]?.pid} ${all[0]?.number} ${all[0]?.text.length}`;
  if (list.dataset.signature === signature) return;
  list.dataset.signature = signature;
  const today = day.format(new Date());
  list.replaceChildren(...(all.length ? all.map((e) => {
    const when = new Date(e.at_ms), date = day.format(when);
    return html('li', { class: e.level === 'info' ? '' : e.level === 'warn' ? 'warn' : 'error' },
      html('time', { datetime: isFinite(when) ? when.toISOString() : '' }, date === today ? at(when) : `${date} ${at(when)}`),
      e.level !== 'info' && html('span', { class: 'lv' }, e.level === 'warn' ? 'warning' : 'error'),
      severalAgents && html('span', { class: 'hint' }, `${e.pid} `), e.text);
  }) : [html('li', only ? 'no warnings' : 'none')]));
}

function show() {
  const { status } = live, { together } = status;
  const answered = together.agents, all = status.agents.length;
  say($('version'), status.version);
  const agents = all === 1 ? '1 agent' : answered === all ? `${all} agents` : `${answered} of ${all} agents answer`;
  say($('state'), `${agents}${all === 1 ? ',' : '; this one'} ${status.state}, up ${up(status)}`);
  const slots = shown();
  const now = [2, 1, 0].map((k) => latest((slot) => slot.all[k]));
  const [blocked, would, allowed] = now;
  say($('t-allowed'), rate(allowed));
  say($('t-blocked'), rate(blocked));
  say($('t-would'), rate(would));
  say($('t-share'), blocked ? `requests/s, ${short.format(blocked / sum(now) * 100)} %` : 'requests/s');
  say($('t-notifies'), rate(latest((slot) => slot.notifies)));
  const [p50, p99] = times(slots.slice(-30).filter(Boolean));
  say($('t-p99'), p99 === null ? '–' : `≤ ${micros(p99)}`);
  say($('t-p50'), p50 === null ? '99 %' : `99 %; half ≤ ${micros(p50)}`);
  document.title = blocked >= .5 ? `${rate(blocked)}/s blocked – gcra-spoa` : 'gcra-spoa';
  traffic.update(slots, (slot) => areas(slot.all));
  latency.update(slots, (slot) => times([slot]));
  showTroubles(troubles(live));
  showClients(status);
  showPolicies(live, slots);
  showHealth(live);
  showAgents(live);
  showEvents(all > 1);
}
function showLink(state, text) {
  $('link').hidden = false;
  mark($('link'), 'data-state', state);
  say($('link-text'), text);
  document.body.classList.toggle('stale', state === 'lost');
}

async function get(path, options = {}) {
  const stop = new AbortController(), timer = setTimeout(() => stop.abort(), PATIENCE);
  try {
    return await fetch(path, { cache: 'no-store', credentials: 'omit', redirect: 'error', signal: stop.signal, ...options });
  } finally {
    clearTimeout(timer);
  }
}
async function sentence(answer) {
  return (await answer.text()).trim().slice(0, 2000) || `the agent answered with status ${answer.status}`;
}
async function look() {
  const all = needsAll || !heard || performance.now() - heard > 20000;
  const answer = await get(all ? 'live?all' : 'live');
  if (!answer.ok) throw new Error(await sentence(answer));
  live = await answer.json();
  needsAll = false;
  const restarted = started !== null && started !== live.status.start_time_seconds;
  if (started === null || restarted) {
    started = live.status.start_time_seconds;
    // An agent that was started again may have other flags and other events.
    if (restarted) needsAll = true;
    actions = (await (await get('actions')).json()).on === true;
    say($('acts'), actions ? 'Actions are on.' : 'Actions are off (--admin-actions).');
  }
  heard = performance.now();
  learn(live);
  show();
  showLink('live', 'live');
}
let timer = 0, looking = false, atOnce = false;
async function again() {
  clearTimeout(timer);
  if (looking) atOnce = true;
  if (document.hidden || looking) return;
  looking = true;
  atOnce = false;
  lookAgain();
  const began = performance.now();
  try {
    await look();
  } catch (error) {
    const since = heard ? `for ${time(performance.now() - heard)}` : '';
    showLink('lost', `no answer ${since}`.trim());
    const why = error.name === 'AbortError' ? 'it took too long' : error.message;
    showTroubles([['bad', heard ? `The agent does not answer. What is shown is from ${at(known.lastAt)}.` : `The agent does not answer: ${why}`]]);
    if (live) { const slots = shown(); traffic.update(slots, (slot) => areas(slot.all)); }
  } finally {
    looking = false;
    // An answer on its way may have been gathered before an action.
    timer = setTimeout(again, atOnce ? 0 : Math.max(500, EVERY - (performance.now() - began)));
  }
}
document.addEventListener('visibilitychange', again);
$('only-warnings').addEventListener('change', () => showEvents((live?.status.agents.length ?? 1) > 1));

// Looking a client up.
const isKnown = (one) => one.blocked || one.would_block || one.order !== null || one.limits.some((limit) => limit.bucket || limit.carried_over) || one.held.some((held) => held.known);
// Shown now: the key, its cards, and when the agent was asked.
let asked = 0, found = null;
// All orders in force, and the card of the network that was looked up.
let allOrders = [], network = null;
const NETWORK = /^[0-9a-f.:]+\/\d{1,3}$/i, NO_NETWORK = /is not (the first address of its|an address or) network/;
async function explain(text) {
  try {
    const answer = await get(`explain?${new URLSearchParams({ key: text })}`);
    return answer.ok ? { list: await answer.json() } : { mistake: await sentence(answer) };
  } catch {
    return { mistake: 'The agent does not answer.', isLost: true };
  }
}
async function lookUp(text, keep) {
  $('key').value = text;
  const mine = ++asked, box = $('found'), { list, mistake } = await explain(text);
  // A later question was faster.
  if (mine !== asked) return;
  if (!keep) $('done').replaceChildren();
  found = network = null;
  say($('asked'), '');
  if (actions && NETWORK.test(text) && !NO_NETWORK.test(mistake)) {
    network = networkCard(text);
    say($('heard'), `Network ${text}`);
    return box.replaceChildren(network.root);
  }
  if (mistake) {
    say($('heard'), mistake);
    return box.replaceChildren(html('p', { class: 'alert bad' }, mistake));
  }
  if (!list.length) say($('heard'), 'No policy counts by such a key.');
  if (!list.length) return box.replaceChildren(html('p', { class: 'hint' }, 'No policy counts by such a key.'));
  list.sort((a, b) => isKnown(b) - isKnown(a));
  found = { text, cards: list.map((one) => answerCard(text, one)), mine, number: 0 };
  box.replaceChildren(...found.cards.map((card) => card.root));
  say($('heard'), list.map((one) => `${one.policy}: ${tagOf(one)[0]}`).join('; '));
  sayWhen();
}
function sayWhen(isLost) {
  if (!isLost) found.at = Date.now();
  say($('asked'), `${found.text}: as of ${at(found.at)}${isLost ? '; the agent has not answered since' : ''}`);
  mark($('asked'), 'class', isLost ? 'blocked' : 'hint');
}
// Asks again about what is on display, while it is.
async function lookAgain() {
  const mine = found;
  if (!mine || !mine.cards[0].root.isConnected) return;
  const number = ++mine.number, { list, isLost } = await explain(mine.text);
  if (mine !== found || asked !== mine.mine || number !== mine.number) return;
  if (isLost) return sayWhen(true);
  const same = list?.length === mine.cards.length && mine.cards.every((card) => list.some((one) => one.policy === card.one.policy));
  // After a reload there may be other policies.
  if (!same) return lookUp(mine.text, true);
  for (const card of mine.cards) card.update(list.find((one) => one.policy === card.one.policy));
  sayWhen();
}
const stateOf = (order) => order.order === 'block' ? 'blocked' : 'exempt';
const tagOf = (one) => one.order?.order === 'exempt' ? ['exempt', 'tag yes'] : one.blocked ? ['blocked', 'tag no'] : one.would_block ? ['would be blocked', 'tag observe'] : one.asks_store ? ['store decides', 'tag'] : ['allowed', 'tag yes'];
function answerCard(text, first) {
  const tag = html('span'), verdict = html('p', { class: 'verdict' }), facts = html('ul'), policy = first.policy ?? 'no policy';
  const details = html('details', html('summary', 'No bucket: not seen lately'));
  const button = (on) => html('button', { type: 'button', click: on });
  const name = (element, words) => { say(element, words); mark(element, 'aria-label', `${words} policy ${policy}`); };
  const card = { one: first };
  const forgives = button(() => forgive(text, card.one)), orders = Object.keys(ORDERS).map((kind) => [kind, button(() => order(kind, text, card.one))]);
  name(forgives, 'Forgive its debt…');
  const act = actions ? html('p', { class: 'buttons' }, forgives, ...orders.map(([, it]) => it)) : null;
  card.root = html('div', { class: 'answer' }, html('div', { class: 'head' }, html('strong', policy), tag), verdict);
  card.update = (one) => {
    card.one = one;
    const [head, ...more] = one.words.split('\n'), words = head.replace(/^.*? decides: /, '');
    const [label, css] = tagOf(one);
    say(tag, label);
    mark(tag, 'class', css);
    say(verdict, `${capital(words)}.`);
    more.forEach((line, i) => say(facts.children[i] ?? facts.appendChild(html('li')), line.trim()));
    while (facts.children.length > more.length) facts.lastChild.remove();
    for (const [kind, it] of orders) name(it, endsOrder(kind, one) ? ORDERS[kind].end : ORDERS[kind].begin);
    const [to, other] = isKnown(one) ? [card.root, details] : [details, card.root];
    if (facts.parentNode !== to) to.append(...[facts, act].filter(Boolean));
    if (other === details) details.remove();
    else if (!details.isConnected || details.parentNode !== card.root) card.root.append(details);
  };
  card.update(first);
  return card;
}
// A network is no client: it has no debt, and only orders are about it.
function networkCard(text) {
  const tag = html('span'), buttons = Object.keys(ORDERS).map((kind) => [kind, html('button', { type: 'button', click: () => order(kind, text, card.one) })]);
  const card = { root: html('div', { class: 'answer' }, html('div', { class: 'head' }, html('strong', `Network ${text}`), tag), html('p', { class: 'verdict' }, 'An order about it is about each client whose address is in it, unless an order about fewer clients is in force.'), html('p', { class: 'buttons' }, ...buttons.map(([, it]) => it))) };
  card.update = () => {
    const now = allOrders.find((it) => it.network && it.key === text);
    card.one = { client: text, policy: null, order: now };
    say(tag, now ? stateOf(now) : 'no order');
    mark(tag, 'class', now?.order === 'block' ? 'tag no' : now ? 'tag yes' : 'tag');
    for (const [kind, it] of buttons) say(it, endsOrder(kind, card.one) ? ORDERS[kind].end : ORDERS[kind].begin);
  };
  card.update();
  return card;
}
$('look').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('key').value.trim();
  if (text) lookUp(text);
});

// Actions, if there are any. Each is asked about once more.
const dialog = $('ask');
let todo = null;
function ask(title, text, yes, path, body, then) {
  todo = { path, body, then };
  say($('ask-title'), title);
  say($('ask-text'), text);
  say($('ask-yes'), yes);
  $('ask-token').hidden = token !== '';
  $('ask-order').hidden = !body.for_seconds;
  $('token').value = $('note').value = '';
  $('ask-wrong').hidden = true;
  dialog.showModal();
  (token ? $('ask-yes') : $('token')).focus();
}
$('ask-no').addEventListener('click', () => dialog.close());
$('ask-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  if (!token) token = $('token').value.trim();
  $('token').value = '';
  $('ask-yes').disabled = true;
  const { path, body, then } = todo;
  // An empty field is left out. The name stays in its field for the next order.
  if (body.for_seconds) for (const id of ['giver', 'note']) body[id] = $(id).value.trim() || undefined;
  let kind = 'bad', said;
  $('ask-wrong').hidden = true;
  try {
    const answer = await get(path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${token}` } });
    if (answer.ok) {
      const done = await answer.json();
      [kind, said] = [done.whole ? 'good' : '', done.said.join('. ') + '.'];
    } else {
      if (answer.status === 401 || answer.status === 429) {
        token = '';
        $('ask-yes').disabled = false;
        $('ask-token').hidden = $('ask-wrong').hidden = false;
        const many = answer.status === 429 ? ' Many wrong ones came in the last minute; the right one still works.' : '';
        say($('ask-wrong'), `This is not the token of this agent, so nothing was done. The token is the first line of the file that --admin-actions names.${many}`);
        return $('token').focus();
      }
      said = await sentence(answer);
    }
  } catch {
    said = 'The agent does not answer; it is not known whether this was done.';
  }
  $('ask-yes').disabled = false;
  dialog.close();
  if (then) await then();
  $('done').replaceChildren(html('p', { class: `alert ${kind}`.trim() }, said));
  $('done').scrollIntoView({ block: 'nearest' });
  again();
});
const client = (one) => one.client || 'this client';
function forgive(key, one) {
  ask('Forgive its debt', `What ${client(one)} owes under the policy '${one.policy}' is cleared, in all agents: it has its full burst at once.`, 'Forgive', 'actions/forgive', { key, policy: one.policy }, lookAgain);
}
function forgiveAll(policy) {
  ask('Forgive all clients', `What all clients owe under the policy '${policy}' is cleared, in all agents, and on all machines that share it: each client has its full burst at once.`, 'Forgive all', 'actions/forgive', { policy }, lookAgain);
}
const ORDERS = {
  exempt: { begin: 'Exempt for an hour…', end: 'End its exemption…', yes: 'Exempt', is: 'is not limited' },
  block: { begin: 'Block for an hour…', end: 'End its block…', yes: 'Block', is: 'is blocked' },
};
// An order about a network is ended by its own key.
const endsOrder = (kind, one) => one.order?.order === kind && one.order.key === one.client;
function order(kind, key, one) {
  const words = ORDERS[kind], plain = (text) => text.replace('…', '');
  const policy = one.policy ?? undefined, by = policy ? `the policy '${policy}'` : 'each policy that counts addresses';
  if (endsOrder(kind, one)) ask(plain(words.end), `${client(one)} is limited by ${by} again.`, 'End it', `actions/${kind}`, { key, policy, for_seconds: 0 }, lookAgain);
  else ask(plain(words.begin), `${client(one)} ${words.is} by ${by} for an hour, in all agents.`, words.yes, `actions/${kind}`, { key, policy, for_seconds: 3600 }, lookAgain);
}
function switchMode(policy, observes) {
  if (observes) ask('Block again', `The policy '${policy}' blocks requests again, in all agents.`, 'Block again', 'actions/observe', { policy, observe: false });
  else ask('Only observe', `The policy '${policy}' counts and charges, and blocks no request, in all agents, until the next reload.`, 'Only observe', 'actions/observe', { policy, observe: true });
}

for (const id of ['main', 'skip']) $(id).hidden = false;
say($('state'), 'Loading…');
showLink('waiting', 'connecting');
again();
