// The words, tables and plots that a report of `gcra-spoa replay` is made of.
const main = document.getElementById("main");

// ---- Words and numbers

const grouped = new Intl.NumberFormat("en-US", {maximumFractionDigits: 0});
/** "4 210", with narrow spaces. */
const number = (n) => grouped.format(n).replaceAll(",", "\u202f");
const requests = (n) => count(n, "request", "requests");
const clients = (n) => count(n, "client", "clients");

/** Two digits that count: a few of many are not none, and all but a few are not all. */
function percent(part, whole) {
  if (!whole || !part) return "0\u202f%";
  const share = (100 * part) / whole;
  if (part === whole) return "100\u202f%";
  if (share < 0.01) return "<\u202f0.01\u202f%";
  if (share > 99.99) return ">\u202f99.99\u202f%";
  if (share > 99) return `${(Math.floor(share * 100) / 100).toFixed(2)}\u202f%`;
  return `${share.toFixed(share < 1 ? 2 : 1)}\u202f%`;
}
function duration(seconds) {
  if (seconds > 0 && seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 100) return `${+seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.round(seconds / 3600);
  return hours < 72 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}
/** The length of a bin: "minute", "15 minutes". */
function period(seconds) {
  for (const [unit, size] of [
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
    ["second", 1],
  ]) {
    if (seconds % size === 0) {
      const n = seconds / size;
      return n === 1 ? unit : `${n} ${unit}s`;
    }
  }
  return `${seconds} s`;
}
const two = (n) => String(n).padStart(2, "0");
const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
const utc = (seconds) => new Date(seconds * 1000);
const day = (d) => `${d.getUTCDate()} ${months[d.getUTCMonth()]}`;
const clock = (d) => `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}`;
const clockSeconds = (d) => `${clock(d)}:${two(d.getUTCSeconds())}`;
function when(seconds) {
  const d = utc(seconds);
  return `${day(d)} ${d.getUTCFullYear()} ${clockSeconds(d)}`;
}
/** `whole` in words, of which `part` is so much. */
const withShare = (words, part, whole) => `${words} (${percent(part, whole)})`;
const largest = (list) => list.reduce((most, n) => Math.max(most, n), 0);
/** A sentence in which names of settings are between backticks. */
const sentence = (text) =>
  capital(/[.!?]$/.test(text) ? text : `${text}.`)
    .split("`")
    .map((part, at) => (at % 2 ? html("code", part) : part));
const bullets = (sentences) =>
  html(
    "ul",
    sentences.map((words) => html("li", sentence(words))),
  );

// ---- Elements

const line = (kind, x1, y1, x2, y2) => svg("line", {class: kind, x1, x2, y1, y2});
const cursor = (y1, y2) => svg("line", {class: "cursor", y1, y2, visibility: "hidden"});
const label = (x, y, words, anchor, kind) =>
  svg("text", {x, y, class: kind, "text-anchor": anchor}, words);
/** A part of a column, `least` pixels high; nothing if it is empty. */
const bar = (kind, x, width, [from, to], y, least) =>
  to > from &&
  svg("rect", {
    class: kind,
    x,
    width,
    y: Math.min(y(to), y(from) - least),
    height: Math.max(least, y(from) - y(to)),
  });
/** Text from the log, which must not turn the text around it. */
const logged = (text) => html("bdi", text);
let ids = 0;

function section(title, lead, ...children) {
  const id = `section-${++ids}`;
  const made = html(
    "section",
    {"aria-labelledby": id},
    html("h2", {id}, title),
    lead && html("p", {class: "lead"}, lead),
    children,
  );
  main.append(made);
  return made;
}

/**
 * A table. A column is [heading, cell of a row, class]; the first one names the row.
 */
function table(caption, columns, rows, tall) {
  const cell = ([, value, kind], row, at) =>
    html(at ? "td" : "th", {class: kind || null, scope: at ? null : "row"}, value(row));
  const head = ([heading, , kind]) =>
    html("th", {class: kind === "n" ? "n" : null, scope: "col"}, heading);
  const tr = (row) =>
    html(
      "tr",
      columns.map((column, at) => cell(column, row, at)),
    );
  return html(
    "div",
    {
      class: tall ? "scroll tall" : "scroll",
      tabindex: 0,
      role: "group",
      "aria-label": caption,
    },
    html(
      "table",
      html("caption", {class: "hidden"}, caption),
      html("thead", html("tr", columns.map(head))),
      html("tbody", rows.map(tr)),
    ),
  );
}

/** The numbers of a plot. They are written when they are first asked for. */
function behind(caption, columns, rows) {
  const toggle = () => {
    if (made.open && made.children.length === 1) {
      made.append(table(caption, columns, rows(), true));
    }
  };
  const made = html("details", {class: "behind", toggle}, html("summary", "Show as a table"));
  return made;
}

function legend(entries) {
  const key = (kind) =>
    svg(
      "svg",
      {width: 18, height: 11, "aria-hidden": "true"},
      kind.startsWith("curve") || kind === "before" || kind === "target"
        ? line(kind, 0, 6, 18, 6)
        : svg("rect", {width: 18, height: 11, rx: 2, class: kind}),
    );
  return html(
    "ul",
    {class: "legend"},
    entries.map(([kind, words]) => html("li", key(kind), words)),
  );
}

// ---- Scales

/** Round numbers from 0 on that reach `most`: at most about `wanted` of them. */
function ticks(most, wanted) {
  const rough = Math.max(most, 1) / wanted;
  const decade = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((s) => s * decade >= rough) * decade);
  const list = [];
  for (let at = 0; at <= most + step * 0.999 && list.length < 20; at += step) list.push(at);
  return list;
}
/** A number on an axis to `most`, in words that stay short and have one unit if they can. */
function short(n, most = n) {
  const units = [
    [1e9, 1e9, "G"],
    [1e6, 1e6, "M"],
    [1e5, 1e3, "k"],
  ];
  const [, size, unit] = units.find(([from]) => most >= from) || [];
  return n && unit ? `${+(n / size).toPrecision(3)}\u202f${unit}` : number(n);
}
/** From an interval to pixels. */
const linear = (from, to, low, high) => (value) =>
  low + (to > from ? (value - from) / (to - from) : 0) * (high - low);

const timeSteps = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
  172800, 604800, 1209600, 2419200, 4838400, 9676800, 31536000,
];

/** Moments at which the time axis is labelled: whole minutes, hours, days. */
function timeTicks(from, to, wanted) {
  const step = timeSteps.find((s) => (to - from) / s <= wanted) || 31536000 * 5;
  const list = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) list.push(at);
  return {step, list};
}

/** The timeline in bins that are wide enough to see: [start, sums of each series]. */
function binned(timeline, series, most) {
  const {start, step} = timeline;
  const length = Math.max(0, ...series.map((list) => (list || []).length));
  const size =
    timeSteps.find((s) => s % step === 0 && (length * step) / s <= most) ||
    step * Math.max(1, Math.ceil(length / most));
  const begin = Math.floor(start / size) * size;
  const bins = [];
  for (let at = 0; at < length; at++) {
    const bin = Math.floor((start + at * step - begin) / size);
    while (bins.length <= bin) bins.push(series.map(() => 0));
    series.forEach((list, i) => (bins[bin][i] += (list || [])[at] || 0));
  }
  return {begin, size, bins};
}

/** "21 Nov 12:05 to 12:10". */
function span(begin, size) {
  const from = utc(begin);
  const to = utc(begin + size);
  if (size % 86400 === 0)
    return size === 86400 ? day(from) : `${day(from)} to ${day(utc(begin + size - 1))}`;
  const words = size % 60 ? clockSeconds : clock;
  if (size === 1) return `${day(from)} ${words(from)}`;
  return `${day(from)} ${words(from)} to ${words(to)}`;
}

/** The outline of columns without gaps, for the `value` of each bin. */
function steps(bins, x, y, value, base) {
  let path = "";
  bins.forEach((bin, at) => {
    const level = y(value(bin)).toFixed(1);
    path +=
      `${at ? "L" : base === undefined ? "M" : `M${x(0)},${base}L`}${x(at).toFixed(1)},${level}` +
      `L${x(at + 1).toFixed(1)},${level}`;
  });
  return base === undefined ? path : `${path}L${x(bins.length).toFixed(1)},${base}Z`;
}

/** A plot that is drawn as wide as it is shown, and again when that changes. */
function plot(draw) {
  const place = html("div", {class: "plot"});
  let drawn = 0;
  const redraw = () => {
    const width = Math.round(place.clientWidth);
    if (width > 0 && width !== drawn) {
      drawn = width;
      place.querySelector("svg")?.remove();
      place.prepend(draw(width, place));
    }
  };
  new ResizeObserver(redraw).observe(place);
  return place;
}

/** Lines across a plot, each [height, words in front of it, class]. */
function levels(picture, left, right, marks) {
  for (const [y, words, kind] of marks)
    picture.append(
      line(kind || "gridline", left, y, right, y),
      label(left - 8, y + 4, words, "end"),
    );
}

/** A mark for each of these numbers below a plot, and its words where there is space for them. */
function marksBelow(picture, numbers, [x, bottom, right], words, space, edge) {
  let last = -Infinity;
  for (const n of numbers) {
    picture.append(line("axis", x(n), bottom, x(n), bottom + 4));
    if (x(n) - last <= space) continue;
    last = x(n);
    const anchor = last > right - edge ? "end" : "middle";
    picture.append(label(last, bottom + 18, words(n), anchor));
  }
}

/**
 * Lets the pointer and the arrow keys walk over the positions of a plot. `spots` is a function to
 * the list of {x, words: [title, line, ...]} of the drawing that is shown.
 */
function explore(place, name, spots, height) {
  const tip = html("div", {class: "tip", hidden: ""});
  let at = -1;
  place.append(tip);
  fill(place, [{
    role: "slider",
    tabindex: 0,
    "aria-label": name,
    "aria-valuemin": 0,
    "aria-valuenow": 0,
    "aria-valuetext": "The arrow keys walk through the plot.",
  }]);
  const hide = () => {
    tip.hidden = true;
    place.querySelector(".cursor")?.setAttribute("visibility", "hidden");
  };
  const show = (next) => {
    const list = spots();
    if (!list.length) return;
    at = Math.max(0, Math.min(list.length - 1, next));
    const {x, words} = list[at];
    tip.replaceChildren(
      html("b", words[0]),
      ...words.slice(1).map((words) => html("div", words)),
    );
    tip.hidden = false;
    const left =
      x + 14 + tip.offsetWidth > place.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.transform = `translate(${Math.max(0, Math.round(left))}px, ${height ?? 8}px)`;
    const mark = place.querySelector(".cursor");
    if (mark) fill(mark, [{x1: x, x2: x, visibility: "visible"}]);
    fill(place, [{
      "aria-valuemax": list.length - 1,
      "aria-valuenow": at,
      "aria-valuetext": words.join(", "),
    }]);
  };
  place.addEventListener("pointermove", (event) => {
    const x = event.clientX - place.getBoundingClientRect().left;
    let best = 0;
    spots().forEach((spot, i, all) => {
      if (Math.abs(spot.x - x) < Math.abs(all[best].x - x)) best = i;
    });
    show(best);
  });
  place.addEventListener("pointerleave", hide);
  place.addEventListener("blur", hide);
  place.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(spots().length / 10));
    const to = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowDown: at - 1,
      ArrowUp: at + 1,
      PageUp: at + page,
      PageDown: at - page,
      Home: 0,
      End: Infinity,
    }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
}

/**
 * Panels of requests over time, one below the other. A panel has a `title` for the length of a bin,
 * and the `value` of a bin, which is drawn as an area; or as a column of `parts`, each [class,
 * height], and perhaps an `outline`. `words` are the lines about a bin.
 */
function timePlot(name, timeline, series, panels, words) {
  let spots = [];
  const draw = (width) => {
    const {begin, size, bins} = binned(timeline, series, Math.max(20, (width - 60) / 4));
    const left = 58;
    const right = width - 10;
    const x = linear(0, bins.length, left, right);
    const time = linear(begin, begin + size * bins.length, left, right);
    const [first, gap] = [24, 38];
    let bottom = first - gap;
    const placed = panels.map((panel, at) => {
      const [top, height] = [bottom + gap, at ? 110 : 160];
      bottom = top + height;
      return {...panel, top, height};
    });
    const picture = svg("svg", {
      viewBox: `0 0 ${width} ${bottom + 24}`,
      "aria-hidden": "true",
    });
    const axis = timeTicks(begin, begin + size * bins.length, Math.max(2, (right - left) / 95));
    for (const at of axis.list) {
      const d = utc(at);
      const isDay = at % 86400 === 0;
      const words =
        isDay || axis.step >= 86400 ? day(d) : axis.step % 60 ? clockSeconds(d) : clock(d);
      const place = time(at);
      const anchor = place < left + 20 ? "start" : place > right - 20 ? "end" : "middle";
      picture.append(
        ...placed.map(({top, height}) => line("gridline", place, top, place, top + height)),
        label(place, bottom + 17, words, anchor, isDay ? "strong" : null),
      );
    }
    for (const {title, value, parts, outline, top, height} of placed) {
      const marks = ticks(largest(bins.map(value)), height / 38);
      const y = linear(0, marks.at(-1), top + height, top);
      const level = (n) => [y(n), short(n, marks.at(-1)), n ? "gridline" : "axis"];
      levels(picture, left, right, marks.map(level));
      picture.append(label(0, top - 10, title(size), null, "strong"));
      if (!parts) {
        picture.append(
          svg("path", {class: "allowed", d: steps(bins, x, y, value, y(0))}),
          svg("path", {class: "allowed-line", d: steps(bins, x, y, value)}),
        );
        continue;
      }
      // Columns of a pixel and a half at least, so that a single blocked minute is seen.
      const column = Math.max(1.5, x(1) - x(0) - (x(1) - x(0) > 6 ? 1 : 0));
      bins.forEach((bin, i) => {
        let from = 0;
        for (const [kind, height] of parts(bin)) {
          fill(picture, [bar(kind, x(i), column, [from, from + height], y, 1.5)]);
          from += height;
        }
      });
      if (outline) {
        picture.append(svg("path", {class: "before", d: steps(bins, x, y, outline)}));
      }
    }
    picture.append(cursor(first, bottom));
    spots = bins.map((bin, at) => ({
      x: x(at + 0.5),
      words: [span(begin + at * size, size), ...words(bin)].filter(Boolean),
    }));
    return picture;
  };
  const place = plot(draw);
  explore(place, name, () => spots);
  return html("figure", place);
}

/** A term and its value, in a list of them. */
const entry = (name, value) => html("div", html("dt", name), html("dd", value));

/** The entries about the logs and their format. */
const whichLog = ({files, format, time}) => [
  entry(
    "Files",
    files.map((file, at) => [at ? ", " : "", logged(file)]),
  ),
  entry("Format", format),
  entry("Time of a request", time),
];

/** The entries about lines and requests that were not counted. */
const notUsed = ({bad, late}) => [
  entry("Bad lines", number(sum(bad.map((one) => one.count)))),
  entry("Too late to be sorted", number(late)),
];

/** The lines that were not used, by kind. */
const badLines = (bad) =>
  bad.length > 0 &&
  table(
    "Bad lines",
    [
      ["What is wrong", (one) => one.kind],
      ["Lines", (one) => number(one.count), "n"],
      ["The first", (one) => [logged(one.file), `, line ${number(one.line)}`]],
      ["It begins", (one) => html("code", logged(one.excerpt))],
    ],
    bad,
  );
