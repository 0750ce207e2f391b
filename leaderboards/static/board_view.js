// The view of the board in the address of the page: ?rank=gsm8k&q=llada&family=dream&tasks=a,b&hide=nfe
"use strict";

const BoardAddress = {
  // The view is in the query; in the fragment where a browser lets no script change the query of a file.
  read() {
    const hash = location.hash.startsWith("#?") ? location.hash.slice(2) : "";
    return new URLSearchParams(hash || location.search);
  },

  write(view) {
    const pairs = Object.entries(view).filter(([, value]) => value !== "");
    const text = pairs.map(([name, value]) => `${name}=${BoardAddress.encode(value)}`).join("&");
    if (text === BoardAddress.written) return;
    BoardAddress.written = text;
    try {
      history.replaceState(null, "", location.pathname + (text && `?${text}`));
    } catch {
      location.replace(`#?${text}`);
    }
  },

  written: null,

  // Keep the address readable: commas and slashes stay, a space is a plus.
  encode(value) {
    return encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%20", "+");
  },
};
