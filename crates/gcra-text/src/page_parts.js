"use strict";
// Functions for both the live page and the report of a replay. Text from outside (names of
// clients, lines of a log) only ever becomes text: nothing here writes markup. Each page has a
// `number` of its own, which writes a number in digits.

const count = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;
const sum = (list) => (list || []).reduce((total, n) => total + n, 0);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/**
 * Fills an element with its attributes, which come first if it has some, and its children. An
 * attribute that is a function is called for the event of that name.
 */
function fill(element, parts) {
  const attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  for (const child of parts.flat(3)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}
const html = (tag, ...parts) => fill(document.createElement(tag), parts);
const svg = (tag, ...parts) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), parts);

