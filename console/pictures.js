// Files with pictures: a field to choose them, with a preview, and what a request has of files.

import { element } from "./elements.js";

/** A file; in JSON, it is its base64. `address`: a `data:` address of it. */
export class EncodedFile {
  constructor(name, address) {
    this.name = name;
    this.address = address;
  }

  toJSON() {
    return this.address.slice(this.address.indexOf(",") + 1);
  }
}

export async function read(file) {
  const reader = new FileReader();
  await new Promise((resolve, reject) => {
    reader.onload = resolve;
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  return new EncodedFile(file.name, reader.result);
}

/**
 * A control to choose files. Its property `pictures` has them once they are read; then it sends
 * the event `input`.
 */
export function pictureField(properties) {
  const previews = element("span", { className: "previews" });
  const input = element("input", { ...properties, pictures: [] });
  input.onchange = async () => {
    input.pictures = [];
    input.pictures = await Promise.all([...input.files].map(read));
    previews.replaceChildren(...input.pictures.map(({ name, address }) => (
      element("img", { src: address, alt: name }))));
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  return element("span", {}, input, previews);
}
