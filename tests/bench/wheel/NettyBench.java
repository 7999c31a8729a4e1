// The workloads of wheel_bench.cc on Netty's HashedWheelTimer: NettyBench WORKLOAD TICK_MS.
// Prints lines "metric value unit". Every timed workload runs twice and counts the second time, so
// that the code is compiled.

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReferenceArray;

public class NettyBench {
  static final int MILLION = 1000000;
  static final TimerTask FIRE = timeout -> NettyBench.fired++; // only the worker runs tasks
  static volatile long fired;
  static int tickMs;

  static final class SplitMix64 {
    long state;
    SplitMix64(long seed) { state = seed; }
    long next() {
      long z = (state += 0x9E3779B97F4A7C15L);
      z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
      z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
      return z ^ (z >>> 31);
    }
    long below(long bound) { return (next() >>> 33) % bound; }
  }

  static long[] delays(long seed) {
    SplitMix64 random = new SplitMix64(seed);
    long[] delays = new long[16384];
    for (int i = 0; i < delays.length; i++) delays[i] = 1 + random.below(60000);
    return delays;
  }

  static HashedWheelTimer timer() {
    return new HashedWheelTimer(
        runnable -> {
          Thread thread = new Thread(runnable, "wheel-driver");
          thread.setDaemon(true);
          return thread;
        },
        tickMs, TimeUnit.MILLISECONDS, 512);
  }

  static void print(String metric, double value, String unit) {
    System.out.printf("%s %.4f %s%n", metric, value, unit);
  }

  static Timeout schedule(HashedWheelTimer timer, long delayMs) {
    return timer.newTimeout(FIRE, delayMs, TimeUnit.MILLISECONDS);
  }

  static void churnOnce(HashedWheelTimer timer, long seed, int pairs) {
    long[] delays = delays(seed);
    Timeout[] ring = new Timeout[1024];
    for (int i = 0; i < 1024; i++) ring[i] = schedule(timer, 10000 + delays[i]);
    for (int i = 0; i < pairs; i++) {
      ring[i & 1023].cancel();
      ring[i & 1023] = schedule(timer, 10000 + delays[i & 16383]);
    }
    for (Timeout timeout : ring) timeout.cancel();
  }

  static void churn(int producers, int preload) throws Exception {
    HashedWheelTimer timer = timer();
    long[] delays = delays(42);
    Timeout[] kept = new Timeout[preload];
    for (int i = 0; i < preload; i++) kept[i] = schedule(timer, delays[i & 16383]);
    churnOnce(timer, 7, 2 * MILLION);
    long start = System.nanoTime();
    Thread[] threads = new Thread[producers];
    for (int k = 0; k < producers; k++) {
      int seed = 1000 + k;
      threads[k] = new Thread(() -> churnOnce(timer, seed, 2 * MILLION));
      threads[k].start();
    }
    for (Thread thread : threads) thread.join();
    print("schedule_cancel", (double) (System.nanoTime() - start) / (2.0 * MILLION * producers), "ns");
  }

  static int spin(int spins) {
    if (spins > 10000) Thread.yield();
    return spins + 1;
  }

  static void cancelCrossThread() throws Exception {
    HashedWheelTimer timer = timer();
    long elapsed = 0;
    for (int pass = 0; pass < 3; pass++) {
      AtomicReferenceArray<Timeout> ring = new AtomicReferenceArray<>(1024);
      AtomicLong scheduled = new AtomicLong();
      AtomicLong cancelled = new AtomicLong();
      long[] delays = delays(1000);
      long start = System.nanoTime();
      Thread canceller =
          new Thread(
              () -> {
                long seen = 0;
                for (int i = 0; i < MILLION; i++) {
                  for (int spins = 0; seen <= i; seen = scheduled.get()) spins = spin(spins);
                  ring.getPlain(i & 1023).cancel();
                  if ((i & 15) == 15) cancelled.setRelease(i + 1);
                }
              });
      canceller.start();
      long seen = 0;
      for (int i = 0; i < MILLION; i++) {
        for (int spins = 0; i - seen >= 1024; seen = cancelled.get()) spins = spin(spins);
        ring.setPlain(i & 1023, schedule(timer, 10000 + delays[i & 16383]));
        if ((i & 15) == 15) scheduled.setRelease(i + 1);
      }
      scheduled.setRelease(MILLION);
      canceller.join();
      elapsed = System.nanoTime() - start;
    }
    print("schedule_cancel", (double) elapsed / MILLION, "ns");
  }

  static void reschedule(int producers) throws Exception {
    HashedWheelTimer timer = timer();
    SplitMix64 random = new SplitMix64(42);
    Timeout[] timeouts = new Timeout[MILLION];
    for (int i = 0; i < MILLION; i++) timeouts[i] = schedule(timer, 60000 + random.below(60000));
    long elapsed = 0;
    for (int pass = 0; pass < 2; pass++) {
      long start = System.nanoTime();
      Thread[] threads = new Thread[producers];
      int mine = MILLION / producers;
      for (int k = 0; k < producers; k++) {
        int first = k * mine;
        SplitMix64 own = new SplitMix64(1000 + k);
        threads[k] =
            new Thread(
                () -> {
                  for (int i = 0; i < MILLION; i++) {
                    int which = first + (int) own.below(mine);
                    timeouts[which].cancel(); // Netty has no re-arm
                    timeouts[which] = schedule(timer, 130000);
                  }
                });
        threads[k].start();
      }
      for (Thread thread : threads) thread.join();
      elapsed = System.nanoTime() - start;
    }
    print("reschedule", (double) elapsed / ((double) MILLION * producers), "ns");
  }

  static long cpuNanos() {
    return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  static void awaitFired(long count) throws Exception {
    while (fired < count) Thread.sleep(1);
  }

  static void bulk() throws Exception {
    HashedWheelTimer timer = timer();
    churnOnce(timer, 7, 2 * MILLION); // warm-up
    SplitMix64 random = new SplitMix64(42);
    fired = 0;
    long start = cpuNanos();
    Timeout[] timeouts = new Timeout[MILLION];
    for (int i = 0; i < MILLION; i++) timeouts[i] = schedule(timer, 1000 + random.below(4000));
    awaitFired(MILLION);
    print("cpu", (double) (cpuNanos() - start) / MILLION, "ns");
  }

  static long heapUsed() throws Exception {
    for (int i = 0; i < 3; i++) {
      System.gc();
      Thread.sleep(100);
    }
    Runtime runtime = Runtime.getRuntime();
    return runtime.totalMemory() - runtime.freeMemory();
  }

  static void bytes() throws Exception {
    HashedWheelTimer timer = timer();
    SplitMix64 random = new SplitMix64(42);
    Timeout[] timeouts = new Timeout[MILLION];
    long before = heapUsed();
    for (int i = 0; i < MILLION; i++) timeouts[i] = schedule(timer, 60000 + random.below(60000));
    print("heap", (double) (heapUsed() - before) / MILLION, "bytes");
    if (timeouts[MILLION - 1].isExpired()) throw new IllegalStateException();
  }

  static void lateness() throws Exception {
    int timers = 100000;
    HashedWheelTimer timer = timer();
    churnOnce(timer, 7, MILLION); // warm-up
    long[] late = new long[timers];
    SplitMix64 random = new SplitMix64(42);
    fired = 0;
    for (int i = 0; i < timers; i++) {
      long delayMs = 200 + random.below(2000);
      long deadline = System.nanoTime() + delayMs * 1000000;
      int at = i;
      timer.newTimeout(
          timeout -> {
            late[at] = System.nanoTime() - deadline;
            fired++;
          },
          delayMs, TimeUnit.MILLISECONDS);
    }
    awaitFired(timers);
    Arrays.sort(late);
    int early = 0;
    while (late[early] < 0) early++;
    print("early", early, "timers");
    print("p50", late[timers / 2] / 1e6, "ms");
    print("p99", late[timers / 100 * 99] / 1e6, "ms");
  }

  // Sleeps and CPU time of the worker.
  static double[] driverUse() throws Exception {
    for (File task : new File("/proc/self/task").listFiles()) {
      String name = Files.readString(task.toPath().resolve("comm")).trim();
      if (!name.equals("wheel-driver")) continue;
      double cpu = Double.parseDouble(Files.readString(task.toPath().resolve("schedstat")).split(" ")[0]);
      double sleeps = 0;
      for (String line : Files.readAllLines(task.toPath().resolve("status"))) {
        if (line.startsWith("voluntary_ctxt_switches:")) sleeps = Double.parseDouble(line.substring(24).trim());
      }
      return new double[] {sleeps, cpu};
    }
    throw new IllegalStateException("no worker");
  }

  static void rest(int timers) throws Exception {
    HashedWheelTimer timer = timer();
    SplitMix64 random = new SplitMix64(42);
    Timeout[] timeouts = new Timeout[timers];
    for (int i = 0; i < timers; i++) {
      timeouts[i] = schedule(timer, timers == 1 ? 60000 : 60000 + random.below(60000));
    }
    int seconds = 3;
    Thread.sleep(1000);
    double[] before = driverUse();
    Thread.sleep(seconds * 1000L);
    double[] after = driverUse();
    print("wake_ups", (after[0] - before[0]) / seconds, "1/s");
    print("cpu", (after[1] - before[1]) / (seconds * 1e9) * 100, "%");
  }

  static volatile long first;
  static volatile long last;

  static void burst() throws Exception {
    HashedWheelTimer timer = timer();
    churnOnce(timer, 7, 2 * MILLION); // warm-up
    fired = 0;
    Timeout[] timeouts = new Timeout[MILLION];
    long due = System.nanoTime() + 5000000000L;
    TimerTask task =
        timeout -> {
          if (fired == 0) first = System.nanoTime();
          fired++;
          if (fired == MILLION) last = System.nanoTime();
        };
    for (int i = 0; i < MILLION; i++) {
      timeouts[i] = timer.newTimeout(task, due - System.nanoTime(), TimeUnit.NANOSECONDS);
    }
    long longest = 0;
    long[] delays = delays(1000);
    for (int i = 0; last == 0; i++) {
      long start = System.nanoTime();
      schedule(timer, 20000 + delays[i & 16383]).cancel();
      long took = System.nanoTime() - start;
      if (first != 0) longest = Math.max(longest, took);
      Thread.sleep(0, 10000);
    }
    print("drain", (last - first) / 1e6, "ms");
    print("longest_stall", longest / 1e6, "ms");
  }

  static void stopRace() throws Exception {
    int rounds = 120;
    long lost = 0;
    for (int round = 0; round < rounds; round++) {
      HashedWheelTimer timer = timer();
      AtomicLong ran = new AtomicLong();
      AtomicLong accepted = new AtomicLong();
      Thread producer =
          new Thread(
              () -> {
                try {
                  for (int i = 0; ; i++) {
                    timer.newTimeout(
                        timeout -> ran.incrementAndGet(), i % 3000, TimeUnit.MICROSECONDS);
                    accepted.incrementAndGet();
                  }
                } catch (IllegalStateException stopped) {
                  // As intended.
                }
              });
      producer.start();
      while (accepted.get() < 1 + round % 50) Thread.yield();
      long returned = timer.stop().size();
      producer.join();
      lost += Math.max(0, accepted.get() - ran.get() - returned);
    }
    print("lost", lost, "tasks");
    print("rounds", rounds, "rounds");
  }

  public static void main(String[] arguments) throws Exception {
    tickMs = Integer.parseInt(arguments[1]);
    switch (arguments[0]) {
      case "churn-service-1p/0": churn(1, 0); break;
      case "churn-service-1p/100k": churn(1, 100000); break;
      case "churn-service-1p/1m": churn(1, MILLION); break;
      case "churn-service-2p/0": churn(2, 0); break;
      case "churn-service-2p/100k": churn(2, 100000); break;
      case "churn-service-2p/1m": churn(2, MILLION); break;
      case "cancel-cross-thread": cancelCrossThread(); break;
      case "reschedule-1m-1p": reschedule(1); break;
      case "reschedule-1m-2p": reschedule(2); break;
      case "bulk-1m": bulk(); break;
      case "bytes-per-timeout": bytes(); break;
      case "lateness-1ms": lateness(); break;
      case "idle-one": rest(1); break;
      case "hold-1m": rest(MILLION); break;
      case "burst-1m": burst(); break;
      case "stop-race": stopRace(); break;
      default: System.err.println("no workload " + arguments[0]); System.exit(2);
    }
    System.exit(0);
  }
}
