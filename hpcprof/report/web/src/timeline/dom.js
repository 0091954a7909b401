// Elements of a page. Texts only ever become text, never markup.

/** Returns a new element with properties, attributes (names with a hyphen, and `role`) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Returns a button. */
export const button = (label, action, properties = {}) =>
  make("button", { type: "button", textContent: label, onclick: action, ...properties });
