-- Health of Workloads and WorkloadDeployments for Argo CD, which needs a script for each kind that is not
-- its own. Put it into the ConfigMap argocd-cm, below both keys:
--   resource.customizations.health.compute.datumapis.com_Workload
--   resource.customizations.health.compute.datumapis.com_WorkloadDeployment
local health = {status = "Progressing", message = "waiting for the controllers"}
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= nil and status.observedGeneration < obj.metadata.generation then
  health.message = "the newest spec has not been observed yet"
  return health
end
for _, condition in ipairs(status.conditions) do
  if condition.type == "Stalled" and condition.status == "True" then
    return {status = "Degraded", message = condition.message}
  end
  if condition.type == "Ready" then
    health.message = condition.message
    if condition.status == "True" then
      health.status = "Healthy"
    elseif condition.reason == "Suspended" then
      health.status = "Suspended"
    end
  end
end
return health
