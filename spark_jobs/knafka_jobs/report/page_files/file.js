// A page that is a file has no console to ask, so it can't send events again; see served.js.

const replaysOf = () => null;
const sendOne = () => null;
