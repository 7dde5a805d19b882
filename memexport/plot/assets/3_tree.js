// The treemap: modules at the peak, squarified (Bruls, Huizing and van Wijk, 2000); a click goes into a module.
const BAR = 20, MOST_CHILDREN = 60;

function path_of([category, maker, name], names) {
  const label = text(name) ?? '';
  if (maker === 'module') return module_path(label);
  if (maker === 'code') return label.split(' › ');
  return maker === 'operator' ? ['no module', operator_label(label)] : [unnamed(names[category])];
}

// What to call bytes of which nobody knows who made them.
const unnamed = category => (category === 'unattributed' ? category : 'module unknown');

// `layers.1` stays together: a number means nothing without what it counts.
function module_path(label) {
  const parts = [];
  for (const part of label.split('.'))
    if (/^\d+$/.test(part) && parts.length) parts[parts.length - 1] += `.${part}`;
    else parts.push(part);
  return parts;
}

function tree_of(device) {
  const root = {name: 'all', bytes: 0, own: new Map(), children: new Map()};
  const add = (path, category, size) => {
    let node = root;
    for (const name of [null, ...path]) {
      if (name !== null) {
        if (!node.children.has(name)) node.children.set(name, {name, bytes: 0, own: new Map(), children: new Map(), parent: node});
        node = node.children.get(name);
      }
      node.bytes += size;
      node.own.set(category, (node.own.get(category) ?? 0) + size);
    }
  };
  const {peak, groups} = device;
  for (let n = 0; n < peak.groups.length; n += 2) {
    const group = groups[peak.groups[n]];
    add(path_of(group, device.names), device.names[group[0]], peak.groups[n + 1]);
  }
  if (peak.unexplained) add(['unattributed'], 'unattributed', peak.unexplained);
  if (peak.others) add(['everything else'], 'other', peak.others);
  return root;
}

// Rectangles for sizes that descend, each as square as can be.
function squarified(sizes, x, y, width, height) {
  const boxes = [], total = sizes.reduce((sum, size) => sum + size, 0);
  const areas = sizes.map(size => size / total * width * height);
  const worst = (row, sum, side) => Math.max(side * side * row[0] / (sum * sum), sum * sum / (side * side * row.at(-1)));
  for (let at = 0; at < areas.length;) {
    const side = Math.max(1e-6, Math.min(width, height)), row = [areas[at]];
    let sum = areas[at++];
    while (at < areas.length && worst([...row, areas[at]], sum + areas[at], side) <= worst(row, sum, side)) {
      row.push(areas[at]);
      sum += areas[at++];
    }
    const thick = sum / side;
    let along = 0;
    for (const area of row) {
      const long = area / thick;
      boxes.push(width >= height ? [x, y + along, thick, long] : [x + along, y, long, thick]);
      along += long;
    }
    if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
  }
  return boxes;
}

function children_of(node) {
  const sorted = [...node.children.values()].filter(child => child.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  const inside = sorted.reduce((sum, child) => sum + child.bytes, 0);
  // What a module holds beside its children is a part of it like them.
  if (sorted.length && node.bytes > inside) sorted.push(itself(node, node.bytes - inside));
  const rest = sorted.slice(MOST_CHILDREN);
  if (!rest.length) return sorted.sort((a, b) => b.bytes - a.bytes);
  const others = {name: `${rest.length} more`, bytes: rest.reduce((sum, child) => sum + child.bytes, 0), own: new Map([['other', 1]]), children: new Map()};
  return [...sorted.slice(0, MOST_CHILDREN), others].sort((a, b) => b.bytes - a.bytes);
}

function itself(node, size) {
  const own = new Map(node.own);
  for (const child of node.children.values())
    for (const [category, bytes_] of child.own) own.set(category, own.get(category) - bytes_);
  return {name: 'itself', bytes: size, own, children: new Map()};
}

const main_category = node => [...node.own].reduce((best, pair) => (pair[1] > best[1] ? pair : best))[0];

class Tree {
  constructor(place, crumbs) { this.place = place; this.crumbs = crumbs; }

  show(device) {
    this.root = tree_of(device);
    this.go(this.root);
  }

  go(node) {
    // A box that would only hold one box says nothing.
    while (node.children.size === 1 && node.bytes === [...node.children.values()][0].bytes && [...node.children.values()][0].children.size)
      node = [...node.children.values()][0];
    this.node = node;
    this.draw();
  }

  draw() {
    this.draw_crumbs();
    const {clientWidth, clientHeight} = this.place;
    this.place.replaceChildren();
    if (!this.node.bytes) return;
    const children = this.node.children.size ? children_of(this.node) : [this.node];
    const boxes = squarified(children.map(child => child.bytes), 0, 0, clientWidth, clientHeight);
    children.forEach((child, n) => this.place.append(this.box(child, boxes[n])));
  }

  draw_crumbs() {
    const path = [];
    for (let node = this.node; node; node = node.parent) path.unshift(node);
    this.crumbs.replaceChildren(...path.flatMap((node, n) => [
      ...(n ? ['›'] : []),
      element('button', {type: 'button', textContent: shortened(node.name, 40), disabled: node === this.node, onclick: () => this.go(node)}),
    ]));
  }

  box(node, [x, y, width, height]) {
    const can_open = node.children.size > 0 && node !== this.node;
    const box = element(can_open ? 'button' : 'div', {
      className: 'box', title: `${node.name}\n${bytes(node.bytes)} (${percent(node.bytes, this.root.bytes)} of the peak)\n${parts(node)}`,
      style: {position: 'absolute', left: `${x + 1}px`, top: `${y + 1}px`, width: `${Math.max(0, width - 2)}px`, height: `${Math.max(0, height - 2)}px`},
    });
    if (can_open) {
      box.type = 'button';
      box.setAttribute('aria-label', `${node.name}, ${bytes(node.bytes)}: open`);
      box.onclick = () => this.go(node);
    }
    const bar = width > 44 && height > BAR + 6 ? BAR : 0;
    if (bar) box.append(element('div', {className: 'label', children: [
      shortened(node.name, 60), element('span', {textContent: bytes(node.bytes)})]}));
    box.append(...this.cells(node, width - 2, height - 2 - bar, bar));
    return box;
  }

  // What is inside: its children, or of a leaf its categories.
  cells(node, width, height, top) {
    const inner = node.children.size ? children_of(node) : [...node.own].filter(([, size]) => size > 0)
      .sort((a, b) => b[1] - a[1]).map(([category, size]) => ({name: category, bytes: size, own: new Map([[category, size]])}));
    if (width < 3 || height < 3 || !inner.length) return [];
    const pad = top ? 3 : 0, boxes = squarified(inner.map(part => part.bytes), pad, top, width - 2 * pad, height - pad);
    return boxes.map(([x, y, wide, high], n) => {
      const paint = recording.colours[main_category(inner[n])];
      return element('div', {
        className: 'cell', textContent: wide > 40 && high > 16 && inner[n].name !== 'unattributed' ? shortened(inner[n].name, 40) : '',
        style: {left: `${x}px`, top: `${y}px`, width: `${Math.max(0.5, wide - 1)}px`, height: `${Math.max(0.5, high - 1)}px`,
                background: paint, color: ink_on(paint), padding: wide > 40 && high > 16 ? '' : '0'},
      });
    });
  }
}

function parts(node) {
  return [...node.own].filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1])
    .map(([category, size]) => `${category} ${bytes(size)}`).join('\n');
}

// A long name loses its middle: its end says most.
function shortened(name, most) {
  return name.length > most ? `${name.slice(0, most * 0.4)}…${name.slice(-most * 0.6)}` : name;
}
