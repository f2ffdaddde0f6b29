// Heat maps: a matrix as a canvas of one pixel per element, coloured from the style sheet's five stops --map-0 … --map-4.

/** 256 colours from −1 to +1, as bytes of an ImageData. */
export function colourTable(element) {
  const style = getComputedStyle(element);
  const stops = [0, 1, 2, 3, 4].map((i) => style.getPropertyValue(`--map-${i}`).trim().match(/[0-9a-f]{2}/gi).map((hex) => parseInt(hex, 16)));
  const table = new Uint8ClampedArray(256 * 4).fill(255);
  for (let i = 0; i < 256; i += 1) {
    const at = (i / 255) * 4, left = Math.min(3, Math.floor(at)), share = at - left;
    for (let c = 0; c < 3; c += 1) table[4 * i + c] = stops[left][c] + share * (stops[left + 1][c] - stops[left][c]);
  }
  return table;
}

/** Draws `values [rows, columns]`; ±limit are the ends of the scale. */
export function drawHeatMap(canvas, values, rows, columns, limit, table) {
  if (canvas.width !== columns || canvas.height !== rows) {
    Object.assign(canvas, { width: columns, height: rows });
    canvas.classList.toggle("fine", Math.max(rows, columns) > 128); // more elements than a small screen has pixels
  }
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < values.length; i += 1) {
    const index = Math.round(127.5 + 127.5 * Math.max(-1, Math.min(1, values[i] / limit)));
    image.data.set(table.subarray(4 * index, 4 * index + 4), 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** The scale itself, from −limit to +limit. */
export const drawScale = (canvas, table) =>
  drawHeatMap(canvas, Float32Array.from({ length: 256 }, (_, i) => i / 127.5 - 1), 1, 256, 1, table);
