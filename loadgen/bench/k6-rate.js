// The same request at a constant rate, for k6.
import http from 'k6/http';

export const options = {
  scenarios: {
    rate: {
      executor: 'constant-arrival-rate',
      rate: Number(__ENV.RATE),
      duration: __ENV.SPAN,
      preAllocatedVUs: 64,
      maxVUs: 256,
    },
  },
};

export default function () {
  http.post(__ENV.URL, __ENV.BODY, { headers: { 'Content-Type': 'application/json' } });
}
