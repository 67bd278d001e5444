// Draws a report of `gcra-spoa replay`. Text from the log only ever becomes text: nothing here
// writes markup.
const report = JSON.parse(document.getElementById("report").textContent);

// ---- Over time

function overTime() {
  const {timeline} = report;
  if (!timeline.allowed.length) return;
  const has = {
    would: sum(timeline.would_block) > 0,
    before: Boolean(timeline.blocked_before),
  };
  const series = [
    timeline.allowed,
    timeline.blocked,
    timeline.would_block,
    timeline.blocked_before,
  ];
  const isAnyBlocked = series.slice(1).some((list) => sum(list) > 0);
  const panels = [
    {title: (size) => `Allowed requests per ${period(size)}`, value: (bin) => bin[0]},
  ];
  const below = has.would && !sum(timeline.blocked);
  if (isAnyBlocked) {
    panels.push({
      title: (size) =>
        `${below ? "Requests that would be blocked" : "Blocked requests"} per ${period(size)}`,
      value: (bin) => Math.max(bin[1] + bin[2], bin[3]),
      parts: ([, blocked, would]) => [["blocked", blocked], ["would", would]],
      outline: has.before && ((bin) => bin[3]),
    });
  }
  const figure = timePlot("Requests over time", timeline, series, panels, (bin) => [
    `${number(bin[0])} allowed`,
    `${number(bin[1])} blocked`,
    has.would && `${number(bin[2])} would be blocked`,
    has.before && `${number(bin[3])} blocked before`,
  ]);
  const entries = [
    ["allowed", "allowed"],
    ["blocked", "blocked"],
  ];
  if (has.would) entries.push(["would", "would be blocked (policies that only observe)"]);
  if (has.before)
    entries.push(["before", `blocked by ${report.configuration.old}`]);
  const {begin, size, bins} = binned(timeline, series, 300);
  const lead = isAnyBlocked
    ? "Times are UTC. The two plots have axes of their own: what is blocked would be too small" +
      " to see beside what is allowed."
    : "Times are UTC. No request would have been blocked.";
  section(
    "Over time",
    lead,
    legend(isAnyBlocked ? entries : entries.slice(0, 1)),
    figure,
    behind(
      "Requests over time",
      [
        [`${capital(period(size))} from (UTC)`, ([at]) => when(begin + at * size)],
        ["Allowed", ([, bin]) => number(bin[0]), "n"],
        ["Blocked", ([, bin]) => number(bin[1]), "n"],
        ...(has.would ? [["Would be blocked", ([, bin]) => number(bin[2]), "n"]] : []),
        ...(has.before ? [["Blocked before", ([, bin]) => number(bin[3]), "n"]] : []),
      ],
      () => [...bins.entries()],
    ),
  );
}

// ---- The headline

function headline() {
  const {total, configuration} = report;
  const decided = total.allowed + total.blocked + total.would_block;
  const isObserved = !total.blocked && total.would_block > 0;
  const blocked = isObserved ? total.would_block : total.blocked;
  const whom = isObserved ? total.clients_would_block : total.clients_blocked;
  const share = percent(blocked, decided);
  const all = clients(total.clients);
  const tight = report.suggest?.suggestions[0];
  const isOnlySuggested = !configuration.new && report.suggest;
  let words;
  if (isOnlySuggested && tight) {
    words =
      `A limit of ${tight.rate} with a burst of ${number(tight.burst)} would have touched ` +
      `${number(tight.clients_touched)} of ${clients(report.suggest.clients)}.`;
  } else if (!report.requests) {
    words = report.lines
      ? "No line of this log is a request that could be replayed."
      : "The log is empty.";
  } else if (!decided) {
    words = "No policy decides about the requests of this log.";
  } else if (!blocked && total.clients === 1) {
    words = "The only client of this log would not have been blocked.";
  } else if (!blocked) {
    words = `None of ${all} would have been blocked.`;
  } else {
    words = `${number(whom)} of ${all} would have been blocked: ${share} of the requests.`;
  }
  const {files} = report;
  const names =
    files.length > 3
      ? `${files.slice(0, 2).join(", ")} and ${files.length - 2} more files`
      : files.join(", ");
  const kicker = html(
    "p",
    {class: "kicker"},
    "gcra-spoa replay of ",
    logged(names),
    configuration.new && [" under ", logged(configuration.new)],
    configuration.old && [", compared with ", logged(configuration.old)],
  );
  main.append(
    html(
      "header",
      kicker,
      html("h1", words),
      html(
        "p",
        {class: "soft"},
        report.first && report.last
          ? report.last - report.first < 1
            ? `${when(report.first)} UTC`
            : `${when(report.first)} to ${when(report.last)} UTC, ` +
              duration(report.last - report.first)
          : "",
        isObserved ? ". The policies only observe: they count and block nothing." : "",
      ),
    ),
  );

  if (report.caution) main.append(html("p", {class: "caution"}, sentence(report.caution)));
  if (isOnlySuggested) return;
  const {against} = report;
  const facts = [["requests decided", decided]];
  facts.push(["allowed", total.allowed, decided]);
  if (total.delayed) facts.push(["allowed, delayed", total.delayed, decided]);
  facts.push(["blocked", total.blocked, decided]);
  if (total.would_block) facts.push(["would be blocked", total.would_block, decided]);
  if (against) {
    facts.push(["newly blocked", against.newly_blocked, decided]);
    facts.push(["no longer blocked", against.newly_allowed, decided]);
    facts.push(["clients newly blocked", against.clients_newly_blocked, total.clients]);
  }
  if (total.unmatched) facts.push(["of no policy", total.unmatched, report.requests]);
  if (total.undecided) facts.push(["undecided", total.undecided, report.requests]);
  main.append(
    html(
      "dl",
      {class: "facts"},
      facts.map(([name, n, whole]) =>
        html(
          "div",
          html("dt", whole ? `${name}, ${percent(n, whole)}` : name),
          html("dd", number(n)),
        ),
      ),
    ),
  );
}

// ---- Suggestions

function suggestions() {
  const found = report.suggest;
  if (!found) return;
  const lead = found.clients
    ? `What limits by ${found.key} would have done to ${clients(found.clients)} with` +
      ` ${requests(found.requests)}. The tight limit is the smallest that touches fewer than` +
      ` ${+(found.target * 100).toPrecision(3)}\u202f% of the ${found.target_of}.`
    : `No request of the log has the key ${found.key}.`;
  const limit = (one) => `${one.rate} burst ${one.burst}`;
  const cards = html(
    "ul",
    {class: "limits"},
    found.suggestions.map((one) =>
      html(
        "li",
        html("h3", capital(one.name)),
        html("p", {class: "rate"}, limit(one)),
        html(
          "p",
          withShare(
            `touches ${clients(one.clients_touched)}`,
            one.clients_touched,
            found.clients,
          ),
          ", ",
          withShare(
            `blocks ${requests(one.requests_blocked)}`,
            one.requests_blocked,
            found.requests,
          ),
        ),
        html("p", {class: "soft"}, `${capital(one.why)}.`),
        html("p", html("code", `limits = ["${limit(one)}"]`)),
      ),
    ),
  );
  const made = section(`Limits that fit this traffic`, lead, cards);
  if (found.curve.length && found.clients) {
    const bursts = shownBursts(found);
    made.append(
      legend([
        ...bursts.map((burst, at) => [`curve b${at}`, `burst ${number(burst)}`]),
        ["target", "target"],
      ]),
      html(
        "div",
        {class: "pair"},
        curve(found, bursts, "clients", found.clients),
        curve(found, bursts, "requests", found.requests),
      ),
      behind(
        "What each limit would have done",
        [
          ["Rate", (point) => point.rate],
          ["Burst", (point) => number(point.burst), "n"],
          ["Clients touched", (point) => number(point.clients), "n"],
          ["of clients", (point) => percent(point.clients, found.clients), "n"],
          ["Requests blocked", (point) => number(point.requests), "n"],
          ["of requests", (point) => percent(point.requests, found.requests), "n"],
        ],
        () => found.curve,
      ),
    );
  }
  if (found.cannot_tell.length && found.clients) {
    made.append(html("h3", "What this log cannot tell"), bullets(found.cannot_tell));
  }
  peaks(found);
  suspects(found);
}

/** Up to four bursts that are far apart, with those that are suggested. */
function shownBursts(found) {
  const all = [...new Set(found.curve.map((point) => point.burst))].sort((a, b) => a - b);
  const suggested = found.suggestions.map((one) => one.burst);
  const wanted = [...new Set([...suggested, 5, 20, 100, 500, ...all])];
  return wanted
    .filter((burst) => all.includes(burst))
    .slice(0, 4)
    .sort((a, b) => a - b);
}

/** The share of clients or requests by the rate, a line for each burst, on logarithmic axes. */
function curve(found, bursts, what, whole) {
  const target = (found.target_of === "requests") === (what === "requests") && found.target;
  const title = what === "clients" ? "Clients touched" : "Requests blocked";
  const points = found.curve.filter((point) => bursts.includes(point.burst));
  const rates = [...new Set(points.map((point) => point.rate_per_second))].sort(
    (a, b) => a - b,
  );
  const names = new Map(points.map((point) => [point.rate_per_second, point.rate]));
  // Beyond the first rate under which nothing happens, two are enough.
  const active = points
    .filter((point) => point.clients > 0)
    .map((point) => point.rate_per_second);
  const marked = found.suggestions.map((one) => one.rate_per_second);
  const end = largest([...active, ...marked]);
  const shown = rates.filter((r, at) => r <= end || rates[at - 2] <= end || at < 4);
  const low = Math.min(-1, Math.floor(Math.log10(Math.min(1 / whole, target || 1) * 1.0001)));
  let spots = [];
  const draw = (width) => {
    const [top, bottom, left, right] = [48, 268, 62, width - 14];
    const x = linear(Math.log10(shown[0]), Math.log10(shown.at(-1)), left, right);
    const X = (r) => x(Math.log10(r));
    const scale = linear(low, 0, bottom - 22, top + 4);
    const y = (share) => (share > 0 ? scale(Math.log10(share)) : bottom);
    const picture = svg("svg", {viewBox: `0 0 ${width} ${bottom + 42}`, "aria-hidden": "true"});
    const every = Math.ceil(-low / 5);
    const marks = [];
    for (let power = 0; power >= low; power -= every) {
      marks.push([y(10 ** power), `${+(100 * 10 ** power).toPrecision(1)}\u202f%`]);
    }
    levels(picture, left, right, [...marks, [bottom, "none", "axis"]]);
    marksBelow(picture, shown, [X, bottom, right], (r) => names.get(r), 48, 12);
    const below = "rate of the limit (logarithmic)";
    picture.append(label((left + right) / 2, bottom + 36, below, "middle"));
    if (target) picture.append(line("target", left, y(target), right, y(target)));
    bursts.forEach((burst, at) => {
      const own = points.filter(
        (point) => point.burst === burst && shown.includes(point.rate_per_second),
      );
      const d = own
        .map(
          (point, i) =>
            `${i ? "L" : "M"}${X(point.rate_per_second).toFixed(1)},` +
            y(point[what] / whole).toFixed(1),
        )
        .join("");
      picture.append(
        svg("path", {class: `curve b${at}`, d}),
        ...own.map((point) =>
          svg("circle", {
            class: `f${at}`,
            r: 2.5,
            cx: X(point.rate_per_second),
            cy: y(point[what] / whole),
          }),
        ),
      );
    });
    const pins = found.suggestions.map((one) => ({
      name: one.name,
      x: X(one.rate_per_second),
      y: y((what === "clients" ? one.clients_touched : one.requests_blocked) / whole),
    }));
    markNames(picture, pins, right);
    picture.append(
      ...pins.map(({x, y}) => svg("circle", {class: "pin", r: 4.5, cx: x, cy: y})),
    );
    picture.append(cursor(top, bottom));
    spots = shown.map((r) => ({
      x: X(r),
      words: [
        names.get(r),
        ...points
          .filter((point) => point.rate_per_second === r)
          .map((point) =>
            withShare(
              `burst ${number(point.burst)}: ${number(point[what])} ${what}`,
              point[what],
              whole,
            ),
          ),
      ],
    }));
    return picture;
  };
  const place = plot(draw);
  explore(place, `${title}, by rate`, () => spots, 60);
  return html("figure", html("figcaption", title), place);
}

/** The names of suggestions above a plot, each with a line down to its {x, y}. */
function markNames(picture, marks, right) {
  marks.forEach((mark, at) => {
    const level = 14 + 13 * (at % 3);
    const anchor = mark.x > right - 30 ? "end" : "middle";
    picture.append(
      line("mark", mark.x, level + 5, mark.x, mark.y),
      label(mark.x, level, mark.name, anchor, "strong halo"),
    );
  });
}

/** How many clients were how busy. */
function peaks(found) {
  const {peaks: bins, peaks_minute: minute} = found;
  if (!bins.some((bin) => bin.clients > 0)) return;
  section(
    "How busy clients are",
    "Each client counts once, in the column of its busiest second or minute (of the clock)." +
      " The axis of clients grows by powers of ten, so that a single client is seen." +
      " A limit certainly touches the clients beyond its mark: it never allows that many.",
    html(
      "div",
      {class: "pair"},
      histogram(found, bins, "second", 1),
      minute.length ? histogram(found, minute, "minute", 60) : null,
    ),
  );
}

function histogram(found, bins, unit, seconds) {
  const title = `Clients by requests in their busiest ${unit}`;
  const range = (bin) =>
    bin.to === bin.from
      ? number(bin.from)
      : bin.to >= 4294967295
        ? `${number(bin.from)} or more`
        : `${number(bin.from)} to ${number(bin.to)}`;
  const marks = found.suggestions.map((one) => ({
    name: one.name,
    at: one.burst + Math.ceil(one.rate_per_second * seconds),
  }));
  let spots = [];
  const draw = (width) => {
    const [top, bottom, left, right] = [50, 210, 62, width - 14];
    const far = Math.max(10, bins.at(-1).to + 1, ...marks.map((mark) => mark.at * 1.3));
    const X = (n) =>
      linear(Math.log10(0.8), Math.log10(Math.min(far, 1e7)), left, right)(Math.log10(n));
    const most = Math.ceil(Math.log10(largest(bins.map((bin) => bin.clients)) + 1) * 1.0001);
    // None, and then each power of ten one step higher.
    const y = (n) => linear(0, most + 1, bottom, top)(n > 0 ? Math.log10(n) + 1 : 0);
    const picture = svg("svg", {viewBox: `0 0 ${width} ${bottom + 42}`, "aria-hidden": "true"});
    const powers = Array.from({length: most + 1}, (_, power) => 10 ** power);
    const heights = powers.map((n) => [y(n), short(n)]);
    levels(picture, left, right, [[bottom, "none", "axis"], ...heights]);
    for (const bin of bins.filter((bin) => bin.clients > 0)) {
      const from = X(bin.from === 1 ? 0.84 : bin.from);
      const to = X(Math.min(bin.to + 1, far));
      picture.append(
        svg("rect", {
          class: "bar",
          x: from,
          y: y(bin.clients),
          width: Math.max(1.5, to - from - 1),
          height: bottom - y(bin.clients),
        }),
      );
    }
    const numbers = [];
    for (let decade = 1; decade <= far; decade *= 10) {
      numbers.push(...[1, 2, 5].map((times) => times * decade).filter((n) => n <= far));
    }
    marksBelow(picture, numbers, [X, bottom, right], (n) => short(n), 34, 10);
    const below = `requests in a ${unit} (logarithmic)`;
    picture.append(label((left + right) / 2, bottom + 36, below, "middle"));
    markNames(
      picture,
      marks.map((mark) => ({name: mark.name, x: X(mark.at), y: bottom})),
      right,
    );
    picture.append(cursor(top, bottom));
    spots = bins
      .filter((bin) => bin.clients > 0)
      .map((bin) => ({
        x: X(Math.sqrt(bin.from * Math.min(far, bin.to + 1))),
        words: [
          `${range(bin)} in a ${unit}`,
          clients(bin.clients),
          percent(bin.clients, found.clients),
        ],
      }));
    return picture;
  };
  const place = plot(draw);
  explore(place, title, () => spots, 60);
  return html(
    "figure",
    html("figcaption", title),
    place,
    behind(
      title,
      [
        [`Requests in the busiest ${unit}`, range],
        ["Clients", (bin) => number(bin.clients), "n"],
        ["of clients", (bin) => percent(bin.clients, found.clients), "n"],
      ],
      () => bins,
    ),
  );
}

function suspects(found) {
  if (!found.suspects.length) return;
  section(
    "The busiest clients",
    "First those that the tight limit would have blocked, then the others.",
    table(
      "The busiest clients",
      [
        ["Client", (one) => logged(one.client), "name"],
        ["Requests", (one) => number(one.requests), "n"],
        ["Busiest second", (one) => number(one.peak), "n"],
        ["Busiest minute", (one) => number(one.busiest_minute), "n"],
        [
          "Blocked by",
          (one) => {
            const names = one.touched_by;
            return names.length === found.suggestions.length && names.length > 1
              ? "all three"
              : names.join(", ") || "none";
          },
        ],
      ],
      found.suspects,
    ),
  );
}

// ---- Who is blocked

function mostBlocked() {
  const {most_blocked: list, timeline} = report;
  if (!list.length) return;
  const isObserved = list.some((one) => one.would_block > 0);
  const isCompared = Boolean(report.against);
  const several = report.policies.length > 1;
  const share = (one) => {
    const n = one.blocked + one.would_block;
    return `${number(n)} (${percent(n, one.requests)})`;
  };
  section(
    "The most blocked clients",
    "The small plots show the time of the whole report, each with its own height: what was" +
      " allowed in blue, and above it in red what would have been blocked.",
    table(
      "The most blocked clients",
      [
        [
          "Client",
          (one) => [
            logged(one.client),
            several && html("div", {class: "soft"}, `policy ${one.policy}`),
          ],
          "name",
        ],
        [isObserved ? "Blocked, or would be" : "Blocked", share, "n"],
        ["of requests", (one) => number(one.requests), "n"],
        ["Over time", (one) => spark(one, timeline), "spark"],
        ...(isCompared && list.some((one) => one.newly_blocked)
          ? [["Newly", (one) => number(one.newly_blocked), "n"]]
          : []),
        ["Busiest second", (one) => number(one.peak.per_second), "n"],
        ["Longest wait", (one) => duration(one.worst_wait), "n"],
        ["Limit", (one) => one.limit || "", "kept"],
        ["First blocked", (one) => when(one.first_blocked).replace(/ \d{4} /, " "), "n"],
      ],
      list,
    ),
  );
  const newly = report.against?.most_newly_blocked || [];
  if (newly.length) {
    section(
      "Blocked now, and not before",
      `Clients with requests that ${report.configuration.old} allows.`,
      table(
        "Newly blocked clients",
        [
          ["Client", (one) => logged(one.client), "name"],
          ["Policy", (one) => one.policy],
          ["Requests newly blocked", (one) => number(one.requests), "n"],
        ],
        newly,
      ),
    );
  }
}

/** A client's requests over the time of the report. */
function spark(one, timeline) {
  const series = [one.timeline.allowed, one.timeline.blocked];
  const {bins, size} = binned(timeline, series, 100);
  const whole = binned(timeline, [timeline.allowed], 100).bins.length || bins.length;
  const most = largest(bins.map(([allowed, blocked]) => allowed + blocked)) || 1;
  const x = linear(0, Math.max(whole, bins.length, 1), 0, 200);
  const y = linear(0, most, 29, 1);
  const width = Math.max(1.5, x(1) - x(0) - 0.3);
  const column = (kind, at, span) => bar(kind, x(at), width, span, y, 1);
  return svg(
    "svg",
    {
      viewBox: "0 0 200 30",
      role: "img",
      "aria-label":
        `At most ${requests(most)} per ${period(size)}; ` +
        `${number(sum(series[1]))} blocked in all`,
    },
    bins.map(([allowed, blocked], at) => [
      column("bar", at, [0, allowed]),
      column("blocked", at, [allowed, allowed + blocked]),
    ]),
    line("axis", 0, 29.5, 200, 29.5),
  );
}

// ---- Policies, the log, and what is not known

function policies() {
  const {policies: list} = report;
  if (!list.length) return;
  const limits = list.flatMap((policy) => policy.limits.map((limit) => ({policy, limit})));
  const observed = list.some((policy) => policy.would_block > 0);
  section(
    "Policies and limits",
    null,
    table(
      "Policies",
      [
        [
          "Policy",
          (one) => [
            logged(one.name),
            one.mode === "observe" && html("div", {class: "soft"}, "only observes"),
            html("div", {class: "soft"}, one.in_words),
          ],
          "name",
        ],
        ["Allowed", (one) => number(one.allowed), "n"],
        ["Blocked", (one) => number(one.blocked), "n"],
        ...(observed ? [["Would be blocked", (one) => number(one.would_block), "n"]] : []),
        ...(list.some((one) => one.undecided)
          ? [["Undecided", (one) => number(one.undecided), "n"]]
          : []),
        [
          "Clients",
          (one) => (one.clients_exact === false ? "about " : "") + number(one.clients),
          "n",
        ],
        [
          "Clients blocked",
          (one) =>
            `${number(one.clients_blocked)} (${percent(one.clients_blocked, one.clients)})`,
          "n",
        ],
      ],
      list,
    ),
    limits.length > 0 &&
      table(
        "Limits",
        [
          [
            "Limit",
            ({limit}) => [
              limit.limit,
              limit.name && limit.name !== limit.limit
                ? html("span", {class: "soft"}, ` ${limit.name}`)
                : null,
              limit.override && html("span", {class: "soft"}, " (override)"),
            ],
            "name",
          ],
          ["Policy", ({policy}) => logged(policy.name)],
          ["Blocked", ({limit}) => number(limit.blocked), "n"],
          ...(observed
            ? [["Would be blocked", ({limit}) => number(limit.would_block), "n"]]
            : []),
          [
            "Longest wait",
            ({limit}) => (limit.worst_wait ? duration(limit.worst_wait) : "none"),
            "n",
          ],
        ],
        limits,
      ),
  );
}

function theLog() {
  const {bad, log_answers: answers} = report;
  section(
    "The log",
    null,
    html(
      "dl",
      {class: "columns"},
      ...whichLog(report),
      entry("Lines", `${number(report.lines)}, of which ${requests(report.requests)}`),
      ...notUsed(report),
      report.truncated
        ? entry("Cut short", `${count(report.truncated, "line", "lines")} (their last fields)`)
        : null,
      answers &&
        entry("Answers in the log", [
          `429: ${number(answers["429"])}, 403: ${number(answers["403"])}`,
          answers.blocked === null
            ? ""
            : `; blocked by the agent then: ${number(answers.blocked)}`,
        ]),
      answers?.undecided &&
        entry("Without a decision then", [
          withShare(
            number(answers.undecided.requests),
            answers.undecided.requests,
            report.requests,
          ),
          answers.undecided.by_err.map(
            ({err, requests: n, why}) => `; err=${err}: ${number(n)} (${why})`,
          ),
          answers.undecided.cut
            ? `; not known of ${count(answers.undecided.cut, "cut line", "cut lines")}`
            : "",
        ]),
    ),
    report.mapping.length > 0 &&
      table(
        "From fields to args",
        [
          ["Arg", (one) => html("code", one.arg)],
          ["Field of the log", (one) => html("code", one.field)],
        ],
        report.mapping,
      ),
    badLines(bad),
  );
}

function notKnown() {
  const {notes, cannot_know: unknown, program, made, lines, seconds} = report;
  if (notes.length) section("About these numbers", null, bullets(notes));
  section("What this report cannot know", null, bullets(unknown));
  const read = `${count(lines, "line", "lines")} in ${duration(seconds)}`;
  main.append(html("footer", `${program}, made on ${when(made)} UTC, ${read}.`));
}

headline();
overTime();
mostBlocked();
suggestions();
policies();
theLog();
notKnown();
