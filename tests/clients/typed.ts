// What a caller with types writes: tsc --strict takes it; the lines after @ts-expect-error are mistakes that it finds.
import {Agent, Instance, Instances, Refused} from 'failback';

async function main(): Promise<void> {
  const agent = new Agent({target: 'unix:/run/a.sock', name: 'orders', ttl: 5});
  await agent.register({service: 'orders', id: 'orders-1', address: '10.0.0.7', port: 8080}, {signal: AbortSignal.timeout(1000)});
  // @ts-expect-error
  await agent.register({service: 'orders', id: 'orders-1', address: '10.0.0.7', port: '8080'});
  for await (const orders of agent.follow('orders', {namespace: 'shop'})) {
    const list: Instances = orders;
    const first: Instance = list.instances[0];
    console.log(first.address, orders.stale);
    // @ts-expect-error
    console.log(first.prot);
  }
  await agent.unregister({service: 'orders', id: 'orders-1'});
  await agent.close();
}

main().catch((error: unknown) => {
  if (error instanceof Refused) {
    const code: number = error.code;
    console.log(code);
  }
});
