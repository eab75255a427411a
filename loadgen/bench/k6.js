// The same request as loadgen's profile sends, for k6.
import http from 'k6/http';

export default function () {
  http.post(__ENV.URL, __ENV.BODY, { headers: { 'Content-Type': 'application/json' } });
}
