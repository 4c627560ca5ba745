// Signing in. The token goes to the server once, which keeps it in a cookie that no script can read.

byId("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const refused = byId("refused");
  const [token, namespaces] = [byId("token").value, byId("namespaces").value];
  try {
    const response = await fetch("api/sign-in", {
      method: "POST",
      body: JSON.stringify({ token, namespaces }),
      headers: { "content-type": "application/json", "knafka-console": "1" },
    });
    if (response.ok) return location.reload();
    write(refused, (await response.json()).error ?? response.statusText);
  } catch (error) {
    write(refused, error.message);
  }
});
// A browser that follows another site's link, such as a chat's, keeps our cookies to itself: asked
// again by ourselves it sends them. Once, as they may be no good any more.
const ASKED = "knafka-asked-again";
const lately = Date.now() - Number(sessionStorage.getItem(ASKED)) < 10_000;
if (document.cookie.includes("knafka-session=") && !lately) {
  sessionStorage.setItem(ASKED, String(Date.now()));
  if (location.hash) location.reload();
  else location.replace(location.href);
}
document.documentElement.dataset.ready = "true";
