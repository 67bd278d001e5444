// Draws a report of `gcra-spoa blocked`. Text from the log only ever becomes text: nothing here
// writes markup.
const report = JSON.parse(document.getElementById("report").textContent);

/** The zone in which times are shown, as the log has them. */
const zone = report.zone;
const local = (seconds) => seconds + report.utc_offset;
const undecided = report.no_decision;
/** "10 min 2 s": from two minutes on in two units, rounded up. */
function told({longest_wait: wait}) {
  if (wait === null) return "not told";
  const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  const found = units.find(([size]) => wait >= 2 * size);
  if (!found) return `${wait} s`;
  const [size, unit, small, smallUnit] = found;
  const smalls = Math.ceil(wait / small);
  const rest = smalls % (size / small);
  const whole = `${number(Math.floor(smalls / (size / small)))} ${unit}`;
  return rest ? `${whole} ${rest} ${smallUnit}` : whole;
}

function headline() {
  const {blocked, clients: list, client, files} = report;
  const whom = client === null ? clients(report.clients_blocked) : client;
  const words = !blocked
    ? client === null
      ? "No request was blocked."
      : ["No request of ", logged(client), " was blocked."]
    : ["An agent blocked ", requests(blocked), " of ", logged(whom), "."];
  const none =
    undecided.requests > 0 &&
    ` HAProxy got no decision about ${requests(undecided.requests)}.`;
  const names =
    files.length > 3
      ? `${files.slice(0, 2).join(", ")} and ${files.length - 2} more files`
      : files.join(", ");
  const [begin, end] = [report.first, report.last].map((at) => when(local(at)));
  main.append(
    html(
      "header",
      html("p", {class: "kicker"}, "gcra-spoa blocked of ", logged(names)),
      html("h1", words, none),
      html("p", {class: "soft"}, `Requests from ${begin} to ${end} ${zone}.`),
    ),
    html(
      "dl",
      {class: "facts"},
      [
        ["requests", report.requests],
        ["allowed", report.allowed, report.requests],
        ["blocked", blocked, report.requests],
        ["without a decision", undecided.requests, report.requests],
        report.not_readable > 0 && ["not readable", report.not_readable, report.requests],
        report.not_asked > 0 && ["not asked about", report.not_asked, report.requests],
      ]
        .filter(Boolean)
        .map(([name, n, whole]) =>
          html(
            "div",
            html("dt", whole ? `${name}, ${percent(n, whole)}` : name),
            html("dd", number(n)),
          ),
        ),
    ),
  );
}

function overTime() {
  const timeline = {...report.timeline, start: local(report.timeline.start)};
  const series = [timeline.allowed, timeline.blocked, timeline.no_decision];
  const panels = [
    {title: (size) => `Allowed requests per ${period(size)}`, value: (bin) => bin[0]},
    {
      title: (size) => `Blocked, no decision, per ${period(size)}`,
      value: (bin) => bin[1] + bin[2],
      parts: ([, blocked, none]) => [["blocked", blocked], ["would", none]],
    },
  ];
  const {begin, size, bins} = binned(timeline, series, 300);
  section(
    "Over time",
    `Times are ${zone}. The two plots have axes of their own.`,
    legend([
      ["allowed", "allowed"],
      ["blocked", "blocked"],
      ["would", "without a decision"],
    ]),
    timePlot("Requests over time", timeline, series, panels, (bin) => [
      `${number(bin[0])} allowed`,
      `${number(bin[1])} blocked`,
      `${number(bin[2])} without a decision`,
    ]),
    behind(
      "Requests over time",
      [
        [`${capital(period(size))} from (${zone})`, ([at]) => when(begin + at * size)],
        ["Allowed", ([, bin]) => number(bin[0]), "n"],
        ["Blocked", ([, bin]) => number(bin[1]), "n"],
        ["Without a decision", ([, bin]) => number(bin[2]), "n"],
      ],
      () => [...bins.entries()],
    ),
  );
}

/** What a row is about, without what the log does not say. */
const about = [
  ...["policy", "limit", "reason"]
    .filter((part) => report.causes.some((cause) => cause[part] !== null))
    .map((part) => [
      capital(part),
      (one) => (one[part] === null ? "" : logged(one[part])),
    ]),
  ["Blocked", (one) => number(one.blocked), "n"],
];

function byLimit() {
  if (!report.causes.length) return;
  section(
    "By policy and limit",
    null,
    table(
      "By policy and limit",
      [
        ...about,
        ["Clients", (one) => number(one.clients), "n"],
        ["Told to wait at most", told, "n"],
      ],
      report.causes,
    ),
  );
}

function byClient() {
  if (!report.clients.length) return;
  // A page with more of them is slow.
  const shown = report.clients.slice(0, 500);
  const more = report.clients.length - shown.length;
  section(
    "Blocked clients",
    `The most often blocked first. Times are ${zone}.` +
      (more ? ` ${number(more)} more rows are in the answer of --json.` : ""),
    table(
      "Blocked clients",
      [
        ["Client", (one) => [logged(one.client), one.known_as === null ? "" : ` (${one.known_as})`]],
        ...about,
        ["First", (one) => when(local(one.first)), "n"],
        ["Last", (one) => when(local(one.last)), "n"],
        ["Told to wait at most", told, "n"],
      ],
      shown,
      shown.length > 20,
    ),
  );
}

function withoutDecision() {
  if (!undecided.requests) return;
  section(
    "Without a decision",
    "HAProxy went on as its rules say for a request about which it got no decision.",
    table(
      "Without a decision",
      [
        ["err", (one) => number(one.err)],
        ["Requests", (one) => number(one.requests), "n"],
        ["Why", (one) => one.why],
      ],
      undecided.by_err,
    ),
  );
}

function theLog() {
  const {bad, notes} = report;
  section(
    "The log",
    null,
    html(
      "dl",
      {class: "columns"},
      ...whichLog(report),
      entry("Client", report.client_field),
      entry("Lines", `${number(report.lines)}, of which ${requests(report.log_requests)}`),
      ...notUsed(report),
      entry("Cut short", `${count(report.truncated, "line", "lines")} (their last fields)`),
    ),
    badLines(bad),
  );
  if (notes.length) section("About these numbers", null, bullets(notes));
  main.append(html("footer", `${report.program}, made on ${when(report.made)} UTC.`));
}

headline();
overTime();
byLimit();
byClient();
withoutDecision();
theLog();
