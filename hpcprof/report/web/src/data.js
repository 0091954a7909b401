// Data inside the page: JSON, compressed by gzip and written in base64, so that it is text of a script element.

/**
 * Reads a block of data.
 * @param {string} id of its script element
 * @returns {Promise<any>} what the block holds; null if the page has no such block
 */
export async function readBlock(id) {
  const element = document.getElementById(id);
  if (element === null) return null;
  const packed = Uint8Array.from(atob(element.textContent.trim()), (character) => character.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(unpacked).text());
}
