// Lines over time, as an SVG file and as text.
//
// Thread safety: functions of their arguments.

#ifndef FAILBACK_TESTS_BENCH_STORM_PLOT_H_
#define FAILBACK_TESTS_BENCH_STORM_PLOT_H_

#include <string>
#include <vector>

namespace failback {

struct Series {
  std::string name;
  // One value per step, from 0.
  std::vector<double> values;
};

struct Panel {
  std::string title;
  std::vector<Series> series;
  // A line across, with its name; none when 0.
  double mark = 0;
  std::string mark_name;
};

// Panels below each other with one x axis of `steps` steps of `step_seconds`.
std::string SvgPlot(const std::string& title, const std::vector<Panel>& panels, int steps,
                    double step_seconds);

// One series as a chart of `width` times `height` characters; each column is the largest of its
// steps. `top` is what the highest row stands for.
std::string TextPlot(const Series& series, int steps, double step_seconds, int width, int height,
                     double top, double mark);

}  // namespace failback

#endif  // FAILBACK_TESTS_BENCH_STORM_PLOT_H_
